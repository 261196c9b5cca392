/* SPDX-License-Identifier: MIT
 *
 * model.c: what the library of stage 05 moves between slow and fast memory, by its tiles.
 *
 * Tensors of 16 bits go to the kernels of stages 03 and 04 as they are, float32 to those that make
 * two passes backward. Clipping and dropout go over the tiles twice, which no formula here knows.
 *
 * Interface: window_library_pass (window_library.h).
 */
#include "harness/models/model.h"
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "attn_options.h"

#ifdef HAVE_CUDA
static WindowPass pass_on_cuda(const AttnArgs *args, int backward)
{
    const FlashTiles t =
        backward ? flash_backward_tiles_library_cuda(args) : flash_tiles_library_cuda(args);
    WindowPass pass = {.tiles = t};
    if (!backward)
        pass.traffic = model_fa2_traffic(args, t.Br, t.Bc, t.splits);
    else if (args->Q.dtype == ATTN_F32)
        pass.traffic = model_two_kernels_backward_traffic(args, t.Br, t.Bc);
    else
        pass.traffic = model_atomic_backward_traffic(args, t.Br, t.Bc, 1);
    return pass;
}
#endif

WindowPass window_library_pass(const AttnArgs *args, int on_cuda, int backward)
{
    const FlashTiles t =
        backward ? flash_backward_tiles_library_cpu(args) : flash_tiles_library_cpu(args);
    WindowPass pass = {.tiles = t};
#ifdef HAVE_CUDA
    AttnArgs copies = *args; /* in float32 where weights are not P */
    if (attn_clips(args) || attn_drops(args))
        copies.Q.dtype = ATTN_F32;
    if (on_cuda)
        return pass_on_cuda(&copies, backward);
#endif
    (void)on_cuda;
    pass.traffic = backward ? model_packed_backward_traffic(args, t.Br, t.Bc, t.splits)
                            : model_packed_traffic(args, t.Br, t.Bc);
    return pass;
}
