/* SPDX-License-Identifier: MIT
 *
 * test_ring_heartbeat: what the notice board of --transport mpi says about who is to blame.
 *
 * Ranks are written on a board here without running: each slot has a place, and the process id of a
 * child of this test that sleeps, is stopped, or is gone.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

#include "transports/mpi/heartbeat.h"

enum { G = 4 };

static HeartBoard *board;
static char path[64];
static pid_t sleeper;

static pid_t child(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when a test fails and does not end it */
        pause();
        _exit(0);
    }
    return pid;
}

static pid_t stopped_child(void)
{
    const pid_t pid = child();
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int fresh(void **state)
{
    (void)state;
    board = heart_create(G, path);
    if (!board)
        return -1;
    sleeper = child();
    for (int rank = 0; rank < G; rank++) {
        heart_join(board, rank);
        board->slot[rank].pid = sleeper;
    }
    return 0;
}

static int away(void **state)
{
    (void)state;
    end(sleeper);
    heart_close(board);
    return 0;
}

static void at(int rank, RingPass pass, int step, HeartOperation operation, int tensor, int peer)
{
    heart_place(board, rank, (HeartPlace){pass, step, operation, tensor, peer});
}

/* All wait for K of the rank before. */
static void circle(void)
{
    for (int rank = 0; rank < G; rank++)
        at(rank, RING_FORWARD, 2, HEART_RECEIVE, RING_K, (rank + G - 1) % G);
}

static void expect_blame(int asked, int culprit, const char *words)
{
    char text[128];
    assert_int_equal(heart_blame(board, asked, text, sizeof text), culprit);
    if (!strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
}

static void expect_explanation(const char *words)
{
    char text[256];
    heart_explain(board, text, sizeof text);
    if (strstr(text, words) != text)
        fail_msg("'%s' does not begin with '%s'", text, words);
}

TEST_BETWEEN(test_a_place_is_one_word, fresh, away)
{
    const HeartPlace corner = {RING_BACKWARD, 255, HEART_MEET, RING_TENSORS, RING_MAX_RANKS - 1};
    HeartBoard *again = heart_open(path);
    HeartPlace read;
    assert_non_null(again);
    heart_place(board, 3, corner);
    read = heart_read(again, 3); /* as another process sees it */
    assert_memory_equal(&read, &corner, sizeof read);
    heart_close(again);
}

TEST_BETWEEN(test_who_computes_is_to_blame, fresh, away)
{
    circle();
    at(1, RING_FORWARD, 1, HEART_COMPUTE, 0, 0);
    expect_blame(3, 1, "; rank 1 is at forward step 1, computing for ");
}

TEST_BETWEEN(test_a_stopped_process_is_to_blame, fresh, away)
{
    const pid_t stopped = stopped_child();
    circle();
    board->slot[1].pid = stopped;
    expect_blame(3, 1, "; rank 1 is stopped at forward step 2, waiting for K from rank 0");
    at(2, RING_FORWARD, 2, HEART_SEND, RING_K, 3); /* and rank 3 waits for it: a circle of two */
    expect_blame(3, 1, "; rank 1 is stopped at forward step 2, waiting for K from rank 0");
    circle();
    at(1, RING_SETUP, 0, HEART_IDLE, 0, 0);
    expect_blame(3, 1, "; rank 1 is stopped before its first step for ");
    at(1, RING_SETUP, 1, HEART_IDLE, 0, 0);
    expect_blame(3, 1, "; rank 1 is stopped between two runs for ");
    circle();
    end(stopped);
    expect_blame(3, 1, "; rank 1 is gone, last seen at forward step 2");
}

TEST_BETWEEN(test_in_a_circle_who_is_furthest_behind, fresh, away)
{
    circle();
    expect_blame(0, 0, ", and the others wait as well"); /* all are as far */
    at(2, RING_FORWARD, 1, HEART_SEND, RING_V, 3);
    expect_blame(2, 2, ", and the others wait as well");
    expect_blame(0, 2, "; rank 2 is at forward step 1, sending V to rank 3");
    at(2, RING_BACKWARD, 0, HEART_RECEIVE, RING_DQ, 1);   /* the backward pass comes later */
    at(0, RING_SETUP, 0, HEART_RECEIVE, RING_TENSORS, 3); /* waits for results: it is through */
    expect_blame(2, 1, "; rank 1 is at forward step 2");
    circle();
    at(0, RING_FORWARD, 2, HEART_SEND, RING_K, 3); /* it has received what the others wait for */
    expect_blame(0, 1, "; rank 1 is at forward step 2, waiting for K from rank 0");
}

TEST_BETWEEN(test_who_is_missing_at_a_meeting, fresh, away)
{
    const pid_t stopped = stopped_child();
    for (int rank = 0; rank < G; rank++)
        at(rank, RING_SETUP, 0, HEART_MEET, 0, 0);
    board->slot[3].pid = stopped; /* it has come, and does not go on */
    expect_blame(0, 3, "; rank 3 is stopped at set-up, waiting for all ranks");
    board->slot[3].pid = sleeper;
    end(stopped);
    at(2, RING_BACKWARD, 3, HEART_COMPUTE, 0, 0);
    expect_blame(0, 2, "; rank 2 is at backward step 3, computing");
    at(1, RING_BACKWARD, 3, HEART_COMPUTE, 0, 0); /* two: who has been silent for longer */
    board->slot[1].since = board->slot[2].since + 1;
    expect_blame(0, 2, "; rank 2 is at backward step 3, computing");
    board->slot[1].since = board->slot[2].since - 1;
    expect_blame(0, 1, "; rank 1 is at backward step 3, computing");
}

TEST_BETWEEN(test_the_cause_of_an_end, fresh, away)
{
    const pid_t gone = child();
    circle();
    expect_explanation("the ranks ended, and none says why");
    heart_stop(board, 3, 0);
    heart_stop(board, 0, 0);
    expect_explanation("rank 3, forward step 2, waiting for K from rank 2: it was told to end");
    board->slot[1].pid = board->slot[2].pid = gone;
    heart_end(board, 1); /* as it should */
    end(gone);
    expect_explanation("rank 2, forward step 2, waiting for K from rank 1: it ended without");
    board->slot[1].state = HEART_ALIVE; /* both vanished, and rank 1 was heard of later */
    board->slot[1].since = board->slot[2].since + 1;
    expect_explanation("rank 2, forward step 2, waiting for K from rank 1: it ended without");
    heart_stop(board, 0, 1); /* rank 2 vanished because mpirun killed it before it could note why */
    expect_explanation("rank 0, forward step 2, waiting for K from rank 3: it was told to end");
    heart_crash(board, 0, SIGSEGV);
    expect_explanation("rank 0, forward step 2, waiting for K from rank 3: crashed (signal 11");
}

TEST_BETWEEN(test_the_first_word, fresh, away)
{
    assert_string_equal(heart_reported(board), "");
    assert_int_equal(heart_report(board, "one"), 1);
    assert_int_equal(heart_report(board, "two"), 0);
    assert_string_equal(heart_reported(board), "one");
}

TEST_BETWEEN(test_the_line_of_a_case, fresh, away)
{
    char much[1000] = "";
    strcpy(board->told, "cases.txt:3: ");
    assert_string_equal(heart_reported(board), "");
    assert_int_equal(heart_report(board, memset(much, 'x', sizeof much - 1)), 1);
    assert_int_equal(strlen(heart_reported(board)), sizeof board->told - 1);
    assert_int_equal(strncmp(heart_reported(board), "cases.txt:3: xxx", 16), 0);
}

/* A text that is cut off is a text. */
TEST_BETWEEN(test_little_room, fresh, away)
{
    char text[16];
    circle();
    heart_explain(board, text, sizeof text);
    assert_string_equal(text, "the ranks ended");
}
