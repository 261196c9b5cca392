/* SPDX-License-Identifier: MIT
 *
 * report.c: the table on stdout: one block a shape, above it the machine, the case with everything
 * that was asked for, and the columns; one line a variant. Stage 06's columns: report_json.c.
 *
 * Interface: report.h, machine_... among them; row_..., head_machine, head_case, head_tiles
 * (report_internal.h).
 */
#include "harness/report/report.h"
#include "attn_config.h"
#include "harness/device/device.h"
#include "harness/models/model.h"
#include "harness/report/report_internal.h"
#include "harness/start.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdio_ext.h> /* __fpurge */
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* --- this computer's parts ---------------------------------------------------------------------*/

#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

/* The system and its architecture; the host's name is nobody's business in a published row. */
const char *machine_name(void)
{
    static char name[160];
    struct utsname u;
    if (!name[0] && uname(&u) == 0)
        snprintf(name, sizeof name, "%.64s %.64s", u.sysname, u.machine);
    return name;
}

int64_t machine_ram_bytes(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

/* x86 calls it "model name"; on other machines the line is missing and the architecture stands. */
const char *machine_cpu(void)
{
    static char cpu[160];
    char line[256];
    FILE *f;
    if (cpu[0])
        return cpu;
    snprintf(cpu, sizeof cpu, "%s", machine_name());
    f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(cpu, sizeof cpu, "%.150s", strchr(line, ':') + 2);
            break;
        }
    if (f)
        fclose(f);
    return cpu;
}

const char *machine_blas(void)
{
#ifdef HAVE_OPENBLAS
    return openblas_get_config();
#else
    return "none";
#endif
}

/* --- above the rows ----------------------------------------------------------------------------*/

/* A stage whose subject is the backward pass. */
static int backward_alone(const Report *r)
{
    return (r->cli->stage->features & STAGE_ALWAYS_BACKWARD) != 0;
}

/* --device auto leaves GPU variants out silently but for this line. */
static void note_no_device(const Report *r, const CliCase *c)
{
    const Stage *stage = r->cli->stage;
    int cuda = 0;
    for (int i = 0; i < stage->variant_count; i++)
        cuda |= stage->variants[i].device == ON_CUDA;
    if (cuda && c->own_variants && c->device == CLI_DEVICE_AUTO && device_count() == 0 &&
        strcmp(c->variant, "all") == 0)
        fprintf(stderr, "note: %s, so the CPU variants run\n",
                device_built() ? "no CUDA device here" : "built without CUDA");
}

/* Before the first row. */
static void head_machine(const Report *r, const CliCase *c)
{
    char blas[64];
    if (r->rows > 0)
        return;
    note_no_device(r, c);
    snprintf(blas, sizeof blas, "%.60s", machine_blas());
    printf("# %s: %s\n", r->cli->stage->name, r->cli->stage->question);
    printf("# CPU %s, %d thread%s, BLAS %s\n", machine_cpu(), c->threads,
           c->threads == 1 ? "" : "s", blas);
    if (device_count() > 0)
        printf("# GPU %s, sm_%d\n", device_name(), device_arch());
    if (!c->bench)
        printf("# ms and speed are of one cold run; --bench measures\n");
}

/* What only stage 05 knows, as far as it was asked for. */
static void print_options(const CliCase *c, const AttnArgs *a)
{
    static const char *const packs[] = {"", ", K and V packed", ", Q, K and V packed"};
    const AttnOptions *o = a->options;
    if (c->tensors == CLI_THD)
        printf(", %" PRId64 " sequence%s in a row", a->positions_q.count,
               a->positions_q.count == 1 ? "" : "s");
    printf("%s%s", c->tensors == CLI_SBHD ? ", SBHD" : "", packs[c->pack]);
    if (o && o->temperature != 1.0f)
        printf(", temperature %g", (double)o->temperature);
    if (o && (o->clip_low != 0.0f || o->clip_high != 1.0f))
        printf(", clip %g,%g", (double)o->clip_low, (double)o->clip_high);
    if (o && o->dropout > 0.0f)
        printf(", dropout %g", (double)o->dropout);
    if (o && o->norm_group)
        printf(", QK norm %" PRId64, o->norm_group);
}

/* Stage 05's last column: how many tiles the window leaves. */
static void head_tiles(const Report *r, const ReportTiles *tiles)
{
    char text[64] = "-";
    if (!(r->cli->stage->features & STAGE_HAS_OFFLINE))
        return;
    if (tiles && tiles->Br)
        snprintf(text, sizeof text, "%" PRId64 "/%" PRId64 "/%" PRId64, tiles->skipped,
                 tiles->masked, tiles->clean);
    printf(" %20s", tiles ? text : "tiles skip/mask/full");
}

/* Which part of a large case was looked at, and how to look at the same part again. */
static void head_sample(const Check *check)
{
    const CheckSample *s = check ? &check->sample : NULL;
    if (!s || !s->sampled)
        return;
    printf("# checked: %" PRId64 " rows of each head", s->rows);
    if (s->keys)
        printf("; %" PRId64 " keys of %" PRId64 " kv head%s%s", s->keys, s->kv_heads,
               s->kv_heads == 1 ? "" : "s",
               s->given ? ", gradients from the run's own O and lse" : "");
    printf("; ATTN_SAMPLE_SEED=%" PRIu64 "\n", s->seed);
}

static void head_case(const Report *r, const ReportRow *row)
{
    static const char *const masks[] = {"", ", full mask", ", causal upper-left",
                                        ", causal lower-right"};
    const CliCase *c = row->c;
    const AttnShape *s = &row->problem->args.shape;
    printf("# ");
    if (c->line)
        printf("line %d: ", c->line);
    printf("B=%" PRId64 " H=%" PRId64 " Hkv=%" PRId64 " Nq=%" PRId64 " Nk=%" PRId64 " d=%" PRId64
           " %s%s",
           s->B, s->H, s->Hkv, s->Nq, s->Nk, s->d, dtype_name(c->dtype), masks[c->mask]);
    if (c->window_given)
        printf(", window %" PRId64 ",%" PRId64, c->window_left, c->window_right);
    print_options(c, &row->problem->args);
    printf("%s%s%s\n",
           c->bundled == CLI_BUNDLED_CAUSAL ? ", bundled training step"
           : c->bundled                     ? ", bundled activations"
           : c->q_file                      ? ", files"
                                            : "",
           backward_alone(r) ? ", backward pass alone"
           : c->backward     ? ", forward + backward"
                             : "",
           c->deterministic ? ", deterministic" : "");
    head_ring_case(r, row);
    head_sample(row->check);
    printf("%-20s %-4s %-5s %9s %9s %9s %7s %10s %10s %7s", "variant", "on", "check", "err/bound",
           "ms", "GFLOP/s", "%sgemm", "traffic", "peak mem", "speed");
    head_tiles(r, NULL);
    head_ring(r, NULL);
    putchar('\n');
}

/* --- rows --------------------------------------------------------------------------------------*/

/* Rows are appended: what is there must be rows, and whole ones. NULL, or what it is instead. */
static const char *not_rows(const char *path)
{
    FILE *f = fopen(path, "rb");
    const char *found = NULL;
    int first;
    if (!f)
        return strerror(errno);
    first = getc(f);
    if (first != EOF && first != '{')
        found = "its text does not begin with '{'";
    else if (first != EOF && (fseek(f, -1, SEEK_END) != 0 || getc(f) != '\n'))
        found = "its last line has no end";
    fclose(f);
    return found;
}

static int refuse_json(const char *path, const char *why)
{
    return cli_refuse(
        "--json: found that '%s' cannot be written to (%s), accepted is a file of JSON "
        "rows or a new one",
        path, why);
}

/* The file for appending; NULL, and *why. */
static FILE *open_rows(const char *path, const char **why)
{
    /* O_NONBLOCK: opening a FIFO would wait for a reader that may never come */
    const int handle = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
    struct stat s;
    FILE *f;
    *why = NULL;
    if (handle >= 0 && fstat(handle, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISCHR(s.st_mode))
        *why = "neither a regular file nor a character device";
    else if (handle >= 0 && fcntl(handle, F_SETFL, O_APPEND) == 0 && (f = fdopen(handle, "a")))
        return f;
    if (!*why)
        *why = strerror(errno);
    if (handle >= 0)
        close(handle);
    return NULL;
}

/* It comes back with what is written, so that a run that is killed before leaves nothing empty
 * behind. */
int report_probe(const char *path, const char **why)
{
    struct stat s;
    const int there = lstat(path, &s) == 0;
    FILE *f = open_rows(path, why);
    if (!f)
        return -1;
    fclose(f);
    if (!there)
        unlink(path);
    return 0;
}

static int try_json(const char *path)
{
    struct stat s;
    const char *why = stat(path, &s) == 0 && S_ISREG(s.st_mode) ? not_rows(path) : NULL;
    return why || report_probe(path, &why) != 0 ? refuse_json(path, why) : EXIT_OK;
}

FILE *report_json_file(Report *r)
{
    static char room[1 << 16]; /* a row is one write: who is killed has written it or has not */
    const char *why;
    struct stat s;
    if (r->json_failed || !r->cli->json_file)
        return NULL;
    if (!r->json) {
        r->json = open_rows(r->cli->json_file, &why);
        r->json_failed = !r->json;
        if (r->json_failed)
            refuse_json(r->cli->json_file, why);
        else
            setvbuf(r->json, room, _IOFBF, sizeof room);
    }
    r->json_end = r->json && fstat(fileno(r->json), &s) == 0 ? (int64_t)s.st_size : 0;
    return r->json;
}

void report_json_end(Report *r)
{
    fputs("}\n", r->json);
    if (fflush(r->json) == 0 && !ferror(r->json))
        return;
    __fpurge(r->json); /* or closing it would try again */
    if (ftruncate(fileno(r->json), (off_t)r->json_end) != 0 && errno != EINVAL) /* a device */
        cli_refuse("--json: found that half a row stays in %s (%s), accepted is a file that can "
                   "be cut",
                   r->cli->json_file, strerror(errno));
    fclose(r->json);
    r->json = NULL;
    r->json_failed = 1;
    cli_refuse("--json: found that %s did not take all rows, accepted is a disk with room",
               r->cli->json_file);
}

int report_open(Report *r, const Cli *cli)
{
    int status = EXIT_OK;
    memset(r, 0, sizeof *r);
    r->cli = cli;
    if (cli->json_file)
        status = try_json(cli->json_file);
    for (int i = 0; i < cli->case_count && status == EXIT_OK; i++)
        if (cli->cases[i].save_dir &&
            (i == 0 || cli->cases[i].save_dir != cli->cases[i - 1].save_dir))
            status = save_probe(cli->cases[i].save_dir);
    if (status != EXIT_OK)
        report_close(r);
    for (int i = 0; i < cli->case_count && status == EXIT_OK; i++)
        start_threads(cli->cases[i].threads);
    return status;
}

int report_close(Report *r)
{
    int status = r->json_failed ? EXIT_RUNTIME : EXIT_OK;
    start_ended();
    bench_progress_clear();
    cli_refuse_context(NULL, NULL, 0);
    if (r->json && fclose(r->json) != 0) {
        cli_refuse("--json: found that %s did not take all rows, accepted is a disk with room",
                   r->cli->json_file);
        status = EXIT_RUNTIME;
    }
    r->json = NULL;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_refuse("found that the standard output did not take the table, accepted is one that "
                   "does");
        status = EXIT_RUNTIME;
    }
    return status;
}

int report_cases(Cli *cli, ReportCase *run)
{
    Report r;
    int i, status = report_open(&r, cli);
    if (status != EXIT_OK)
        return status;
    for (i = 0; i < cli->case_count; i++) {
        cli_refuse_context(NULL, cli->cases[i].cases_file, cli->cases[i].line);
        status = exit_worst(status, run(&r, cli, &cli->cases[i]));
    }
    return exit_worst(status, report_close(&r));
}

/* Of the medians. NaN if the run failed. */
static double row_ms(const Report *r, const ReportRow *row)
{
    const RunResult *out = row->result;
    return (backward_alone(r) ? 0.0 : samples_median(&out->forward)) +
           (row->c->backward ? samples_median(&out->backward) : 0.0);
}

double row_flops(const Report *r, const ReportRow *row)
{
    const AttnArgs *a = &row->problem->args;
    return (backward_alone(r) ? 0.0 : model_flops(a, 0)) +
           (row->c->backward ? model_flops(a, 1) : 0.0);
}

double row_gflops(const Report *r, const ReportRow *row)
{
    const double ms = row_ms(r, row);
    return ms > 0.0 ? row_flops(r, row) / (ms * 1e6) : NAN;
}

size_t row_peak(const Report *r, const ReportRow *row)
{
    return backward_alone(r) ? row->result->peak_backward : row->result->peak_bytes;
}

int row_pass(const ReportRow *row)
{
    if (!row->result->ran)
        return 0;
    return row->check ? row->check->pass : -1;
}

/* Measured once, when it first is needed: it costs about a second. */
static void measure_sgemm(Report *r, const CliCase *c, AttnDevice device)
{
    if (!c->bench || device != ON_CPU || r->sgemm_threads == c->threads)
        return;
    bench_progress("sgemm rate of this machine");
    r->sgemm_gflops = bench_sgemm_gflops(1024, 5, c->threads);
    r->sgemm_threads = c->threads;
    bench_progress_clear();
}

const char *bytes_text(char text[16], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    if (!(bytes >= 0.0))
        return "-";
    for (; bytes >= 1024.0 && u < 4; u++)
        bytes /= 1024.0;
    snprintf(text, 16, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return text;
}

static const char *number_text(char text[16], const char *format, double value)
{
    if (!isfinite(value))
        return "-";
    snprintf(text, 16, format, value);
    return text;
}

/* Of the table. What did not run was not checked either, and no row that could be kept. */
static const char *verdict(const ReportRow *row)
{
    const int pass = row_pass(row);
    if (!row->result->ran)
        return "fail";
    return pass < 0 ? "-" : pass ? "ok" : "WRONG";
}

void report_row(Report *r, const ReportRow *row)
{
    const Check *check = row->check;
    const int on_cpu = row->variant->device == ON_CPU;
    const double ms = row_ms(r, row), gflops = row_gflops(r, row);
    char t[7][16];
    if (row->c->judge_dir && !row->result->ran) /* files that cannot be read: no result, no row */
        return;
    measure_sgemm(r, row->c, row->variant->device);
    report_json(r, row);
    if (!r->cli->quiet) {
        head_machine(r, row->c);
        if (r->baseline != row->c)
            head_case(r, row);
    }
    if (r->baseline != row->c) {
        r->baseline = row->c;
        r->baseline_ms = ms;
    }
    r->rows++;
    if (r->cli->quiet)
        return;
    printf("%-20s %-4s %-5s %9s %9s %9s %7s %10s %10s %7s", row->variant->name,
           on_cpu ? "cpu" : "cuda", verdict(row),
           check && isinf(check->bound_ratio)
               ? "inf"
               : number_text(t[0], "%.3f", check ? check->bound_ratio : NAN),
           number_text(t[1], "%.3f", ms), number_text(t[2], "%.2f", gflops),
           number_text(t[3], "%.1f",
                       on_cpu && r->sgemm_gflops > 0.0 ? 100.0 * gflops / r->sgemm_gflops : NAN),
           bytes_text(t[4], row->model_bytes > 0.0 ? row->model_bytes : NAN),
           bytes_text(t[5], (double)row_peak(r, row)),
           number_text(t[6], "%.2fx", r->baseline_ms / ms));
    head_tiles(r, &row->tiles);
    head_ring(r, row);
    putchar('\n');
    fflush(stdout);
}

void report_softmax_row(Report *r, const ReportSoftmax *row)
{
    const double ms = samples_median(row->ms), gbps = row->bytes / (ms * 1e6);
    char t[7][16];
    report_json_softmax(r, row);
    if (!r->cli->quiet) {
        head_machine(r, row->c);
        if (r->baseline != row->c)
            printf("# softmax of %" PRId64 " rows of %" PRId64 " columns, %s\n"
                   "%-20s %-4s %-5s %9s %8s %9s %9s %7s %10s %7s\n",
                   row->c->rows, row->c->cols, dtype_name(row->c->dtype), "variant", "on", "check",
                   "err/bound", "accesses", "ms", "GB/s", "%copy", "peak mem", "speed");
    }
    if (r->baseline != row->c) {
        r->baseline = row->c;
        r->baseline_ms = ms;
    }
    r->rows++;
    if (r->cli->quiet)
        return;
    printf("%-20s %-4s %-5s %9s %8s %9s %9s %7s %10s %7s\n", row->variant,
           row->device == ON_CPU ? "cpu" : "cuda",
           row->pass < 0 ? "-"
           : row->pass   ? "ok"
                         : "WRONG",
           number_text(t[0], "%.3f", row->bound_ratio), number_text(t[1], "%.3g", row->accesses),
           number_text(t[2], "%.3f", ms), number_text(t[3], "%.2f", gbps),
           number_text(t[4], "%.1f", row->copy_gbps > 0.0 ? 100.0 * gbps / row->copy_gbps : NAN),
           bytes_text(t[5], (double)row->peak_bytes),
           number_text(t[6], "%.2fx", r->baseline_ms / ms));
    fflush(stdout);
}

int report_skip(Report *r, const CliCase *c, const Variant *v, const char *why)
{
    bench_progress_clear();
    if (v == &c->so)
        return cli_refuse("--variant-so: found a case that %s skips: %s; accepted is a library "
                          "that computes it",
                          v->name, why);
    if (strcmp(c->variant, v->name) == 0)
        return cli_refuse("%s %s: found a case that it skips: %s; accepted is %s all",
                          c->variant_flag, v->name, why, c->variant_flag);
    if (!r->cli->quiet)
        fprintf(stderr, "note: %s is skipped: %s\n", v->name, why);
    return EXIT_OK;
}
