/* SPDX-License-Identifier: MIT
 *
 * machine.c: names of this computer's parts, for the head of the table and the JSON rows.
 * See report.h.
 */
#include "report/report.h"

#include "attn_config.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

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
