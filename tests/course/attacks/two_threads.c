/* SPDX-License-Identifier: MIT
 *
 * two_threads.c: enters the sandbox with a second thread, which would stay outside. Prints why it
 * may not, or "entered". With an argument there is no second thread.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "course/sandbox.h"

static void *wait_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

int main(int argc, char **argv)
{
    char why[256] = "entered";
    pthread_t thread;
    (void)argv;
    if (argc == 1 && pthread_create(&thread, NULL, wait_for_ever, NULL) != 0)
        return 2;
    sandbox_enter(0, why, sizeof why);
    if (write(STDOUT_FILENO, why, sizeof why) < 0) /* stdio may want what is not allowed */
        return 2;
    _exit(0);
}
