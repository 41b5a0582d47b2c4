/*
 * product_registers.h - vector registers, as assembly names what it overwrites.
 */
#ifndef PTAC_OPS_PRODUCT_PRODUCT_REGISTERS_H
#define PTAC_OPS_PRODUCT_PRODUCT_REGISTERS_H

#define VECTORS_16                                                                     \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",    \
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define VECTORS_32                                                                     \
    VECTORS_16, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",         \
        "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30",        \
        "xmm31"

#endif
