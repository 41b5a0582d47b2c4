/*
 * source_cpu.h - the process's own memory, by mmap.
 */
#ifndef PTAC_MEM_CPU_SOURCE_CPU_H
#define PTAC_MEM_CPU_SOURCE_CPU_H

#include "mem/engine/source.h"

typedef struct ptac_source_cpu {
    ptac_source source;
    uintptr_t base, end;      /* the one range */
    uintptr_t accessible_end; /* below, pages may be touched */
    bool is_small;            /* no huge pages but where they are asked for */
} ptac_source_cpu;

/* A source of one range. */
void ptac_source_cpu_init(ptac_source_cpu *cpu);

#endif
