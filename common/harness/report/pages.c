/* SPDX-License-Identifier: MIT
 *
 * pages.c: --trace --step. See pages.h.
 *
 * A word of a page is changed when the page before has another word, or none, at the same place of
 * the same line. So a table whose columns stay where they are shows by itself which of its numbers
 * a step touches. The first page has nothing to be compared with.
 *
 * Interface: pages_open, pages_play, pages_trace (pages.h).
 */
#include "harness/report/pages.h"

#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

typedef struct Line {
    const char *at;
    int length;
} Line;

/* The lines of one page; those that it does not have are empty. */
typedef struct Page {
    Line lines[PAGE_LINES];
    int count;
} Page;

FILE *pages_open(Pages *p)
{
    *p = (Pages){NULL, 0, NULL};
    return p->to = open_memstream(&p->text, &p->bytes);
}

static Page read_page(const char *from, const char *end)
{
    Page page = {{{NULL, 0}}, 0};
    while (from < end && page.count < PAGE_LINES) {
        const char *stop = memchr(from, '\n', (size_t)(end - from));
        stop = stop ? stop : end;
        page.lines[page.count++] = (Line){from, (int)(stop - from)};
        from = stop + 1;
    }
    return page;
}

/* Does the word from `first` to `end` of a line stand in `before`, too? Its surroundings count: a
 * word that became longer is another word. */
static int same_word(const Line *line, const Line *before, int first, int end)
{
    const int stop = end < line->length ? end + 1 : end; /* the blank behind it */
    if (before->length < end)
        return 0;
    if (memcmp(line->at + first, before->at + first, (size_t)(end - first)) != 0)
        return 0;
    return stop == end ? before->length == end : before->at[end] == ' ' || before->length == end;
}

static void show_line(const Line *line, const Line *before, int terminal, FILE *screen)
{
    int at = 0, changed = 0;
    while (at < line->length) {
        int end = at;
        if (line->at[at] == ' ') {
            fputc(' ', screen);
            at++;
            continue;
        }
        while (end < line->length && line->at[end] != ' ')
            end++;
        const int other = before && !same_word(line, before, at, end);
        changed |= other;
        if (other && terminal)
            fputs("\033[7m", screen);
        fwrite(line->at + at, 1, (size_t)(end - at), screen);
        if (other && terminal)
            fputs("\033[0m", screen);
        at = end;
    }
    fputs(changed && !terminal ? " *\n" : "\n", screen);
}

static void show_page(const Page *page, const Page *before, int number, int count, int terminal,
                      FILE *screen)
{
    if (terminal)
        fputs("\033[H\033[2J", screen);
    for (int n = 0; n < page->count; n++)
        show_line(&page->lines[n], before ? &before->lines[n] : NULL, terminal, screen);
    for (int n = page->count; terminal && n < PAGE_LINES; n++)
        fputc('\n', screen);
    fprintf(screen, "-- page %d of %d", number + 1, count);
    fputs(terminal ? ": Enter next, b back, q end " : "\n", screen);
    fflush(screen);
}

/* The next key, or EOF. A terminal gives each key at once and does not show it. */
static int read_key(FILE *keys)
{
    struct termios before, now;
    const int terminal = tcgetattr(fileno(keys), &before) == 0;
    int key;
    if (terminal) {
        now = before;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(fileno(keys), TCSADRAIN, &now);
    }
    key = fgetc(keys);
    if (terminal)
        tcsetattr(fileno(keys), TCSADRAIN, &before);
    return key;
}

/* Where each page begins; the last entry is the end of the text. */
static const char **find_pages(const Pages *p, int *count)
{
    const char *at = p->text, *const end = p->text + p->bytes;
    const char **starts;
    *count = 1;
    for (const char *c = at; c < end; c++)
        *count += *c == '\f' && c + 1 < end;
    starts = malloc(((size_t)*count + 1) * sizeof *starts);
    if (!starts)
        return NULL;
    for (int n = 0; n < *count; n++) {
        const char *stop = memchr(at, '\f', (size_t)(end - at));
        starts[n] = at;
        at = stop ? stop + 1 : end;
    }
    starts[*count] = end;
    return starts;
}

static Page page_at(const char *const *starts, int n, const char *end)
{
    const char *stop = starts[n + 1];
    return read_page(starts[n],
                     stop > starts[n] && (stop < end || stop[-1] == '\f') ? stop - 1 : stop);
}

int pages_play(Pages *p, FILE *keys, FILE *screen)
{
    const int terminal = isatty(fileno(screen));
    const int failed = ferror(p->to) | fclose(p->to);
    int count = 0, n = 0, before = -1, open = 1;
    const char **starts = failed ? NULL : find_pages(p, &count);
    while (starts && n < count) {
        const char *end = p->text + p->bytes;
        const Page page = page_at(starts, n, end);
        const Page last = page_at(starts, n ? n - 1 : 0, end);
        int key = '\n';
        if (n != before)
            show_page(&page, n ? &last : NULL, n, count, terminal, screen);
        before = n;
        if (open)
            key = read_key(keys);
        open = open && key != EOF;
        if (key == 'q')
            break;
        if (key == '\n' || key == ' ' || key == EOF)
            n++;
        else if (key == 'b' && n > 0)
            n--;
    }
    if (starts && terminal)
        fputc('\n', screen);
    free(starts);
    free(p->text);
    return starts ? 0 : -1;
}

int pages_trace(const CliCase *c, const AttnArgs *args, PagesWriter screen, PagesWriter steps)
{
    Pages pages;
    FILE *to;
    int failed;
    if (!c->step)
        return screen(args, stdout);
    if (!(to = pages_open(&pages)))
        return -1;
    failed = steps(args, to);
    return pages_play(&pages, stdin, stdout) | failed;
}
