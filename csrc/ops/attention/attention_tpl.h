/*
 * attention_tpl.h - the rows of attention and of its gradients.
 *
 * The includer defines, besides lanes: ISA, NEEDS, TILE_ROWS (attention_tile_tpl.h),
 * and FEW_QUERIES, int: so many are served one by one.
 */
#include "ops/attention/attention.h"
#include "ops/math/quick_tpl.h"

#include "ops/attention/attention_tile_tpl.h"

#include "ops/attention/attention_block_tpl.h"

#include "ops/attention/attention_forward_tpl.h"

#include "ops/attention/attention_one_tpl.h"

#include "ops/attention/attention_backward_tpl.h"

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_attention *is = call->params;

    /*
     * Where all queries see but one key its weight is exactly 1 by stock, which sums up
     * a score in one order, forward and backward. A thread's memory holds BLOCK_LANES
     * queries of d numbers.
     */
    return is->d > 1024 || is->n_keys == 1 || (is->is_causal && is->n_queries == 1)
               ? PTAC_SHAPE
               : PTAC_TAKE;
}

static ptac_status run_forward(const ptac_call *call)
{
    ptac_attention_job job = ptac_attention_forward_job(call);

    if (job.is.n_queries <= FEW_QUERIES && !job.kept.data)
        forward_queries(&job);
    else
        forward_blocks(&job);
    return job.status;
}

static ptac_status run_backward(const ptac_call *call)
{
    ptac_attention_job job = ptac_attention_backward_job(call);

    ptac_parallel_for(0, job.is.batch * job.is.key_heads, 1, backward_some, &job);
    return job.status;
}

PTAC_ROW(ATTENTION, ISA, PTAC_CLOSE, NEEDS, accepts, run_forward)
PTAC_ROW(ATTENTION_BACKWARD, ISA, PTAC_CLOSE, NEEDS, accepts, run_backward)
PTAC_ROW(ATTENTION_DROPOUT, ISA, PTAC_CLOSE, NEEDS, accepts, run_forward)
PTAC_ROW(ATTENTION_DROPOUT_BACKWARD, ISA, PTAC_CLOSE, NEEDS, accepts, run_backward)
