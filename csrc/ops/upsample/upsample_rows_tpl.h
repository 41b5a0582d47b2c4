/*
 * upsample_rows_tpl.h - all vector rows of this folder.
 *
 * Included behind typed_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 */
#include "ops/upsample/upsample_picks_tpl.h"

#include "ops/upsample/bilinear2d_backward_tpl.h"
#include "ops/upsample/bilinear2d_tpl.h"
#include "ops/upsample/nearest2d_tpl.h"
#include "ops/upsample/pixel_shuffle_tpl.h"
