/*
 * lanes_bf16.h - the words that bfloat16 shares with float: a lane of it is a float.
 */
#ifndef PTAC_OPS_POOL_LANES_BF16_H
#define PTAC_OPS_POOL_LANES_BF16_H

#define range_bf16            range_f32
#define either_bf16           either_f32
#define both_bf16             both_f32
#define is_none_bf16          is_none_f32
#define count_bf16            count_f32
#define greater_bf16          greater_f32
#define unordered_bf16        unordered_f32
#define set_bf16              set_f32
#define load_real_bf16        load_real_f32
#define store_real_bf16       store_real_f32
#define add_bf16              add_f32
#define div_bf16              div_f32
#define keep_bf16             keep_f32
#define pick_bf16             pick_f32
#define iequal_bf16           iequal_f32
#define iramp_bf16            iramp_f32
#define load_index_bf16       load_index_f32
#define store_index_bf16      store_index_f32
#define iset_bf16             iset_f32
#define iadd_bf16             iadd_f32
#define ipick_bf16            ipick_f32
#define iload_bf16            iload_f32
#define istore_bf16           istore_f32
#define index_is_bf16         index_is_f32
#define tally_bf16            tally_f32
#define isum_bf16             isum_f32
#define mul_bf16              mul_f32
#define store_real_pairs_bf16 store_real_pairs_f32

#endif
