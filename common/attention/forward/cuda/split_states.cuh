/* SPDX-License-Identifier: MIT
 *
 * split_states.cuh: the states of the parts of split keys, and the way from the kernel that writes
 * them to the one that merges them (split_keys.cuh).
 *
 * On Hopper the second kernel is there before the first one ends (griddepcontrol), and waits.
 *
 * Interface:
 * - SplitStates. successor_may_come: by the kernel before the merge, or it is launched when that
 *   ends; wait_for_predecessor: by the merge.
 */
#ifndef FLASH_FORWARD_SPLIT_STATES_CUH
#define FLASH_FORWARD_SPLIT_STATES_CUH

/* O [splits][B][Nq][H][d], lse [splits][B][H][Nq], float32. O NULL: one part, which goes to the
 * tensors at once. */
struct SplitStates {
    float *O, *lse;
    int count;
};

/* Hopper: this grid's successor may be launched before it ends ... */
static __device__ __forceinline__ void successor_may_come(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ... and waits here until all that its predecessor wrote is there. */
static __device__ __forceinline__ void wait_for_predecessor(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
