/* SPDX-License-Identifier: MIT
 *
 * machine.h: a CUDA multiprocessor as a data structure.
 *
 * A thread is a fiber: a stack of its own, left only where the thread has to wait. Lanes of a warp
 * run one after the other until all that an instruction names have come to it; then the last one
 * does the work of all (block.cpp). One CPU thread does everything, in an order that is a function
 * of the seed: the same program says the same on every run.
 *
 * In the mode `check` each word (4 bytes) of shared and device memory has a Cell: who wrote it
 * last, who has read it since, and when. "When" is a vector clock: a thread knows for each other
 * thread up to which of its moments everything has happened before. Barriers, mbarriers,
 * __syncwarp and fences join clocks (clocks.cpp); an access whose forerunner is not known to have
 * happened before is a race (shadow.cpp).
 *
 *     block.cpp     fibers, the scheduler, barriers, shuffles
 *     clocks.cpp    vector clocks, atomics and fences
 *     shadow.cpp    every access: bounds, races, unwritten memory
 *     ptx_warp.cpp  mma, ldmatrix, cp.async, single instructions
 *     ptx_async.cpp mbarrier, the copy engine (TMA), wgmma
 *     count.cpp     bytes, sectors, wavefronts, instructions
 *     reach.cpp     what `check` has not tried
 *     show.cpp      a picture of a line's accesses
 *     trace.cpp     a block in model ticks
 *     report.cpp    findings and counts as text
 *     host.cpp      the CUDA runtime's interface
 *
 * Interface: what these files share.
 */
#ifndef SIMT_MACHINE_H
#define SIMT_MACHINE_H

#define SIMT_RUNTIME
#include "include/cuda.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "include/simt.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <signal.h>
#include <string>
#include <unordered_map>
#include <vector>

namespace simt
{
typedef uint32_t u32;

/* --- what was asked for (environment: SIMT_CHECK=1 ...) ----------------------------------------*/

struct Flags {
    bool check, count;
    int early; /* copies and products happen at the first moment that the rules allow; 2: by seed */
    int seed;  /* of the warps' order; 0: in order, -1: backwards */
    int blocks;  /* order of blocks: 0 in order, 1 backwards, 2 by seed */
    int seconds; /* CPU seconds without progress that are a finding */
    std::string lines, show;
    bool trace;
    int block;        /* that is traced */
    std::string json; /* a file for it */
    bool stages;      /* are told: how often each mbarrier was used */
};
extern const Flags flags;

enum {
    SMEM_BASE = 0x400,   /* the address of the first byte, so that 0 is no address */
    SMEM_MAX = 232448,   /* dynamic and static, a block: Hopper's */
    STACK = 256 << 10,   /* of a thread */
    MAX_THREADS = 1024,  /* of a block */
    WINDOW = 0x40000,    /* shared addresses of one block of a cluster */
    ENGINE = MAX_THREADS /* the copy engine's number as a thread */
};

/* --- clocks ------------------------------------------------------------------------------------*/

struct Clock;
typedef std::shared_ptr<const Clock> ClockRef;
/* What is known of other blocks: through fences and atomics only. */
typedef std::map<u32, ClockRef> Known;

/* at[t]: moment of thread t up to which all has happened before. async[t]: the same for what the
 * async proxy (copy engine, tensor cores) may rely on: raised by fence.proxy.async. fenced[t]: for
 * what an atomic may publish to other blocks: raised by __threadfence. inits[t]: as far as
 * mbarrier.init of thread t is concerned: what a relaxed arrival at a cluster's barrier tells. */
struct Clock {
    std::vector<u32> at, async, fenced, inits; /* by slot_of; the last two may be empty */
    std::shared_ptr<const Known> known;
};

/* What who waits at a barrier will learn. */
struct Gathering {
    Clock clock;
    ClockRef last; /* that was joined: most who come share theirs */
};

/* --- memory ------------------------------------------------------------------------------------*/

enum How : uint8_t {
    PLAIN,
    ATOMIC, /* atomics and volatile */
    ASYNC,  /* copy engine, wgmma */
    INIT    /* mbarrier.init: who uses the mbarrier asks for himself whether it was before */
};

struct Access {
    u32 block, clock, pc;
    u32 lanes; /* of the thread's warp that read at the same moment */
    uint16_t thread;
    How how;
    uint8_t bytes; /* of the cell's four, a bit each; 0: there is no such access */
};
/* Four bytes of memory. */
struct Cell {
    Access writer, reader; /* the last ones */
    u32 writers;           /* earlier ones of other bytes: a list of More */
    u32 readers;     /* earlier ones: a list for each warp of the block, one behind the other */
    u32 warps;       /* whose list is not empty */
    u32 flight;      /* a copy on its way here: the line that issued it */
    u32 epoch;       /* of the block (shared memory) or the launch (global) */
    uint8_t written; /* bytes that hold a value */
};
struct More {
    Access a;
    u32 next;
};

struct Memory { /* of the device */
    uintptr_t lo, hi;
    std::vector<Cell> cells; /* none before a kernel or a part of the memory needs them */
    bool managed;
    uint8_t written; /* of each cell, as long as there is none */
};
extern std::map<uintptr_t, Memory> memory;

/* --- threads -----------------------------------------------------------------------------------*/

struct Log { /* one access, for count.cpp */
    uintptr_t a;
    u32 pc;
    uint8_t size, write, shared, lane;
};
struct Copy { /* cp.async */
    u32 to, pc;
    const char *from;
    int bytes, valid;
};
struct Product { /* wgmma */
    float *C;
    int n;
    simt_ptx::Type type;
    bool from_registers, add, trans_A, trans_B;
    u32 A[4], pc;
    u64 A_desc, B_desc;
    ClockRef clock;
};
struct Accumulator {           /* of wgmma: what its registers hold, or will hold */
    std::vector<float> values; /* as the last wait or fence left it */
    int pending; /* products issued and not waited for: meanwhile the registers hold NaN */
    u32 pc;
};
struct Operand { /* A in registers, as last issued at a line */
    u32 A[4];
    bool retired; /* a wait has come since */
};
struct Store { /* of a tile by the engine */
    u32 from, pc;
    SimtTensorMap map;
    int at[5];
    ClockRef clock;
};
/* Asynchronous work of one kind: what a thread has issued, and the groups that it committed. */
template <class T> struct Async {
    std::vector<T> open;
    std::vector<std::vector<T>> groups;
    u32 done; /* waited for */
    void commit(void)
    {
        groups.push_back(std::move(open));
        open.clear();
    }
    template <class F> void wait(int keep, F land)
    {
        for (; (int)groups.size() > keep; done++) {
            const std::vector<T> group = std::move(groups[0]);
            groups.erase(groups.begin());
            for (const T &t : group)
                land(t);
        }
    }
};

struct Block;
struct Fiber;
typedef void (*Collective_op)(Block &, int warp, u32 mask);

/* Where the lanes of a warp come together for an instruction of them all: the last one does it. */
struct Meeting {
    u32 lanes, mask; /* those that have come; those that the last of them waits for */
    Collective_op op;
    bool is_mixed; /* not all came to the same */
    /* a shuffle or vote, by lane */
    int from[32];
    u64 value[32], result[32];
};

/* First what each change of fibers needs: one line of the cache. */
struct alignas(64) Fiber {
    void *context;
    char *stack;
    Block *block;
    const char *waits; /* for what, NULL: it can run */
    /* an instruction of the whole warp that this lane has come to */
    Collective_op op;
    void *argument;
    u32 mask, pc; /* pc: where it waits */
    u32 last_pc;
    uint8_t lane, warp;
    bool done, spinning;
    int tid;
    uint3 index;
    int line; /* of the __syncthreads, 0: a barrier of PTX */
    /* check */
    u32 clock, inits; /* inits: the moment of its last fence.mbarrier_init */
    ClockRef base;
    /* count */
    std::vector<Log> log;
    /* asynchronous work */
    Async<Copy> copies;
    Async<Product> products;
    Async<Store> stores;
    std::map<float *, Accumulator> accumulators;
    std::map<u32, Operand> operands; /* by line, since the last fence */
    bool wgmma_fenced;
    u32 cluster_phase; /* that it has arrived at */
};

/* Of a block, by number (0: __syncthreads), or of a cluster. */
enum { CLUSTER = 16 };
struct Barrier {
    u32 id = 0, phase = 0, pc = 0; /* pc: of the first who came */
    int expected = 0;              /* of a named one */
    std::vector<Fiber *> came, waiting;
    int yes = 0; /* of a vote */
    /* by the block of who waits: of the phase that is open, and of the one before */
    std::map<Block *, Gathering> gathering;
    std::map<Block *, ClockRef> over;
};
struct Piece { /* of a copy by the engine */
    u32 to;
    std::string bytes;
};
struct EngineCopy {
    std::vector<Piece> pieces;
    int bytes;
    u32 pc;
    u32 from;      /* 0, or shared memory that is read when the copy arrives */
    Fiber *issuer; /* and who said so, at that moment */
    ClockRef clock;
    How how = ASYNC; /* PLAIN: of st.async, which is no business of the async proxy */
};
struct Mbarrier {
    int expected, pending, bytes;
    u32 phase, pc;
    Access made;
    Gathering gathering; /* of the phase that is open */
    ClockRef over;       /* of the one before */
    std::vector<EngineCopy> copies;
    std::vector<Fiber *> waiting; /* for the end of the phase that is open */
};

struct Block {
    uint3 index;
    u32 number;
    std::vector<Block *> cluster;
    std::vector<Fiber *> fibers;
    char *stacks, *smem;
    Cell *cells; /* of shared memory */
    std::vector<More> more;
    u32 lanes[32], ready[32], alive[32]; /* by warp */
    Meeting meetings[32];
    int live;
    size_t static_bytes;
    std::map<const void *, u32> static_at;
    Barrier barriers[CLUSTER + 1]; /* the last one: of the cluster's first block, for all of it */
    int vote[3];                   /* of the last __syncthreads */
    std::map<u32, Mbarrier> mbarriers;
    u32 engine_clock, random;
    u32 epoch; /* of the cells: those of an earlier block count as new */
};

struct Launch {
    Config config{1, 1};
    const char *name;
    u32 pc; /* of the launch */
    void (*body)(void *);
    void *arguments;
    int threads, warps;
    u32 number;
    std::vector<More> more;
    bool failed;
};

extern Launch launch_now;
extern Fiber *me;                      /* NULL: the host's code runs */
extern unsigned long progress;         /* counts whatever is no spinning */
extern volatile sig_atomic_t given_up; /* not 0: nothing else happens any more */
[[noreturn]] void no_progress(u32 pc); /* the finding that says so */

/* --- functions ---------------------------------------------------------------------------------*/

/* Where the caller of a runtime function stands, as an offset into the program. */
extern uintptr_t program_lo, program_hi;
#define SIMT_PC ((simt::u32)((uintptr_t)__builtin_return_address(0) - 1 - simt::program_lo))

/* A thread's place in a clock; the engine's is the last. */
static inline size_t slot_of(int thread)
{
    return (size_t)(thread == ENGINE ? launch_now.warps * 32 : thread);
}

/* block.cpp */
static inline Fiber **warp_of(Block &b, int warp)
{
    return b.fibers.data() + warp * 32;
}
void wait_here(const char *what, u32 pc);
void wake(Fiber *f);
void spin(u32 pc); /* lets others run */
u32 next_random(u32 &state);
void rendezvous(u32 mask, Collective_op op, void *argument, const char *what, u32 pc);
int lanes_of(int warp);

/* clocks.cpp */
void raise(std::vector<u32> &a, const std::vector<u32> &b);
void join(Clock &into, const Clock &from);
/* What f knows now. of: the block whose barrier it is. */
void gather(Gathering &g, const Fiber *f, const Block *of);
void gather_inits(Gathering &g, const Fiber *f, const Block *of); /* no more than of mbarriers */
void learn(Fiber *f, const ClockRef &what);
bool knows_init(const Fiber *f, const Access &made);
const u32 *known_elsewhere(const Clock &c, u32 block);
void raise_own(std::vector<u32> Clock::*which); /* a fence: to all that this thread has done */
Clock new_clock(void);
Clock this_moment(Fiber *f); /* what is known now, itself included; its next moment begins */
void publish(Fiber *f, uintptr_t address, bool is_rmw);
void acquire(Fiber *f, uintptr_t address);
void read_flag(uintptr_t address, int size, u32 pc); /* volatile or acquiring */
void write_flag(uintptr_t address, int size, u32 pc);
void clocks_forget(void); /* a new launch */

/* shadow.cpp */
void access(uintptr_t a, int size, bool write, u32 pc, How how);
bool check_shared(Fiber *f, u32 address, int size, bool write, u32 pc, How how,
                  const char *what = "", const Clock *as_of = nullptr);
bool check_global(Fiber *f, uintptr_t a, int size, bool write, u32 pc, How how,
                  const char *what = "");
extern bool is_written_twice; /* a place, and nothing orders the two */
void compare_writes(void);
static inline void settle_writes(void) /* were the two of the same value? */
{
    if (is_written_twice)
        compare_writes();
}
/* For count.cpp. */
void log_access(Fiber *f, uintptr_t a, int size, bool write, bool shared, u32 pc);
void set_flight(u32 address, int bytes, u32 pc);
void mark_written(uintptr_t a, size_t bytes, bool written); /* by the host */
Memory *memory_of(uintptr_t a);
void forget(const Memory *m);
void write_by_engine(Block &b, u32 address, int size, u32 pc, How how);
void read_by_engine(Block &b, const EngineCopy &c); /* b: where it goes */
Block &block_of(u32 address);

/* ptx_warp.cpp */
const u32 pending_bits = 0x7fb5a5a5u; /* a NaN: what registers hold while a wgmma is at work */
bool is_pending(float x);
void check_pending(float x, u32 pc);
bool happens_now(void); /* a copy: at the first moment that the rules allow? */

/* ptx_async.cpp */
bool land_for_waiters(Block &b);
void end_of_thread(Fiber *f);

/* reach.cpp: what has not been tried */
void note_stages(const Block &b); /* how often its mbarriers and groups of copies were used */
void print_stages(FILE *to);
void note_reached(u32 pc);
void print_lines_not_reached(FILE *to);

/* count.cpp */
enum Kind {
    K_MMA,
    K_WGMMA,
    K_LDMATRIX,
    K_STMATRIX,
    K_CP_ASYNC,
    K_TMA,
    K_SHUFFLE,
    K_EXP,
    K_ATOMIC,
    K_BARRIER,
    K_MBARRIER,
    KINDS
};
/* Wavefronts or sectors of one request: n lanes' accesses by one instruction. */
long cost_of(const Log *l, int n, long *ideal);
void count_access(u32 pc, const Log *l, int n);
void count_shared_read(const Fiber *f);
void count_mbarriers(const Block &b);
void count_engine(u32 pc, bool write, long bytes, long sectors);
void count_kind(Kind kind, long warps_of_32 = 1, long flops = 0);
/* What a warp asks for at once: the n-th access at one place by each of its lanes. */
typedef std::map<std::pair<u32, u32>, std::vector<Log>> Requests;
Requests requests_of(Block &b, int warp);
void merge_warp(Block &b, int warp);
void count_launch(void);
void print_counts(FILE *to);

/* show.cpp */
void show_request(u32 pc, const Log *l, int n);
void print_shown(FILE *to, const std::function<bool(u32)> &is_of_kernel);

/* trace.cpp: what the first lane of each warp of one block does */
enum Act {
    GLOBAL_READ,
    GLOBAL_WRITE,
    SHARED_READ,
    SHARED_WRITE,
    MMA,
    WGMMA,
    EXP,
    SHUFFLE,
    COPY, /* cp.async */
    ENGINE_COPY,
    ENGINE_STORE,
    COMMIT, /* n: of what, an Act */
    WAIT,   /* key: for how many groups at most */
    ARRIVE, /* key: of a barrier's phase */
    AWAIT
};
void trace(Act act, u32 pc, long n = 0, u64 key = 0);
void trace_request(u32 pc, const Log *l, int n); /* of the warp at once: ldmatrix */
void trace_launch(void);
void trace_merge(Block &b, int warp);
void print_trace(FILE *to);
static inline u64 phase_of(u32 barrier, u32 phase)
{
    return (u64)barrier << 32 | phase;
}

/* report.cpp */
/* What a kernel may not do: name, what a finding is called, where that stands. */
#define SIMT_RULES(RULE)                                                                           \
    RULE(R_RACE_WR, "race: written, then read, and nothing orders the two",                        \
         "PTX ISA, Memory Consistency Model, Causality Order: a barrier, or a fence and a flag, "  \
         "must stand between")                                                                     \
    RULE(R_RACE_RW, "race: read, then written, and nothing orders the two",                        \
         "PTX ISA, Memory Consistency Model, Causality Order: who overwrites must wait for who "   \
         "reads")                                                                                  \
    RULE(R_RACE_WW, "race: written twice, and nothing orders the two",                             \
         "PTX ISA, Memory Consistency Model, Data-races: which value stays is undefined")          \
    RULE(                                                                                          \
        R_SAME_VALUE, "warning: the same value written twice, and nothing orders the two",         \
        "PTX ISA, Memory Consistency Model, Data-races: harmless as long as the values are equal") \
    RULE(R_UNWRITTEN, "read of memory that nobody wrote",                                          \
         "CUDA C++ Programming Guide, Memory: shared and device memory begin undefined")           \
    RULE(R_BOUNDS_SHARED, "out of bounds of shared memory",                                        \
         "PTX ISA, State Spaces, Shared: a block has what its launch asked for")                   \
    RULE(R_BOUNDS_GLOBAL, "out of bounds of global memory",                                        \
         "PTX ISA, State Spaces, Global: an address must lie in what was allocated")               \
    RULE(R_BOUNDS_LOCAL, "out of bounds of an array",                                              \
         "C++, expr.add: an index must lie in the array")                                          \
    RULE(R_BOUNDS_MAP, "a tile that its tensor map does not have",                                 \
         "PTX ISA, Tensors: the coordinates of a copy have the rank of its map")                   \
    RULE(R_HOST_MEMORY,                                                                            \
         "a kernel reads or writes memory of the host, or the host that of the device",            \
         "CUDA C++ Programming Guide, Device Memory: each sees its own; cudaMemcpy lies between")  \
    RULE(R_FLIGHT, "use of bytes of a copy that is still on its way",                              \
         "PTX ISA, Asynchronous operations: only a wait makes what was copied visible")            \
    RULE(R_NOT_WAITED, "a thread ends before its asynchronous work",                               \
         "PTX ISA, Asynchronous operations: a block's memory must live until all has arrived")     \
    RULE(R_PROXY, "no fence.proxy.async between a thread's write and the async proxy",             \
         "PTX ISA, Memory Consistency Model, Proxies: the copy engine and wgmma see generic "      \
         "writes only after fence.proxy.async")                                                    \
    RULE(R_WGMMA_FENCE, "wgmma without wgmma.fence",                                               \
         "PTX ISA, wgmma.fence: before the first wgmma, and whenever registers of A or C have "    \
         "changed")                                                                                \
    RULE(R_WGMMA_WAIT, "use of an accumulator before wgmma.wait_group",                            \
         "PTX ISA, wgmma.mma_async: its registers must not be used before the wait")               \
    RULE(R_MISALIGNED, "misaligned access",                                                        \
         "PTX ISA, Addresses as Operands: an address is a multiple of its size")                   \
    RULE(R_BARRIER_SPLIT, "a barrier in a branch: threads of a block wait at two lines",           \
         "CUDA C++ Programming Guide, Synchronization Functions: all threads must come to the "    \
         "same __syncthreads")                                                                     \
    RULE(R_BARRIER_ENDED, "a barrier that some threads never come to",                             \
         "CUDA C++ Programming Guide, Synchronization Functions: all threads of the block must "   \
         "come")                                                                                   \
    RULE(R_BARRIER_COUNT, "wrong count of a named barrier",                                        \
         "PTX ISA, bar: the count is a multiple of 32, and the same for all who come")             \
    RULE(R_MBARRIER, "wrong use of an mbarrier",                                                   \
         "PTX ISA, mbarrier: it is initialised once, and as often arrived at as it counts")        \
    RULE(R_MBARRIER_PHASE, "wrong phase of an mbarrier",                                           \
         "PTX ISA, mbarrier: parity names the phase that is waited for")                           \
    RULE(R_SHUFFLE, "a lane is missing in a shuffle or vote",                                      \
         "PTX ISA, shfl.sync: every lane of the mask must come, and only those may be read")       \
    RULE(R_DEADLOCK, "deadlock", "all threads wait, and no one is left who could end that")        \
    RULE(R_NO_PROGRESS, "no progress",                                                             \
         "nothing but a loop ran; a value that it waits for never came")                           \
    RULE(R_LIMIT, "more than the machine has",                                                     \
         "CUDA C++ Programming Guide, Compute Capabilities: threads and shared memory a block")    \
    RULE(R_CRASH, "crash", "the program cannot go on behind this line")                            \
    RULE(R_ASSERT, "assertion failed", "assert in a kernel")
#define RULE(NAME, TITLE, TEXT) NAME,
enum Rule { SIMT_RULES(RULE) };
#undef RULE
/* A line and what is to be said of it, as by printf. by: who does it comes first (NULL: the host's
 * code). */
struct Site {
    u32 pc; /* 0: a sentence without a line */
    std::string text;
};
#define SIMT_FORMAT(N) __attribute__((format(printf, N, N + 1)))
Site site(u32 pc, const char *format, ...) SIMT_FORMAT(2);
Site by(const Fiber *f, u32 pc, const char *format, ...) SIMT_FORMAT(3);
Site by(const Access &a, const char *format, ...) SIMT_FORMAT(2);
/* A finding is one for each pair of the first two lines. Of one: by a thread, or as `site`. */
void finding(Rule rule, const std::vector<Site> &sites);
void finding(Rule rule, const Fiber *f, u32 pc, const char *format, ...) SIMT_FORMAT(4);
void finding(Rule rule, u32 pc, const char *format, ...) SIMT_FORMAT(3);
static inline const char *s_of(long count)
{
    return count == 1 ? "" : "s";
}
bool has_findings(void);
void print_report(void);
std::string place(u32 pc);                   /* file:line, of the rung and of what it includes */
std::string function_at(u32 pc);             /* its linker's name, not of what is inlined */
void symbolize(const std::vector<u32> &pcs); /* for these two: all of them by one call */
/* The line of the kernel's code at which a signal came; where: its ucontext_t. */
u32 kernel_line(const Fiber *f, void *where);
[[noreturn]] void stop(int status);
void report_at_exit(void);

} // namespace simt

/* Products of matrices, ptx_warp.cpp. */
namespace simt_ptx
{
extern u32 A_of[16][32], B_of[256][32]; /* the operands: numbers as bits, [row][k] */
int size_of(Type type);
void take_fragment(u32 (*to)[32], const u32 *r, int registers, int lane, Type type);
void multiply(Type type, float (*C)[256], int n); /* C += A B, 32 bytes of a row */
} // namespace simt_ptx
#endif
