#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"
#define ROWS_OF_TILES 7
#include "ops/conv/winograd_tpl.h"

DEFINE_WINOGRAD(2x2, 2, 2, 3)
DEFINE_WINOGRAD(4x2, 4, 2, 3)
DEFINE_WINOGRAD(4x4, 4, 4, 3)
#endif
