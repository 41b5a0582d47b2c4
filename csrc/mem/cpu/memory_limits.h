/*
 * memory_limits.h - how much memory this process may have, as the system tells it.
 */
#ifndef PTAC_MEM_CPU_MEMORY_LIMITS_H
#define PTAC_MEM_CPU_MEMORY_LIMITS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The least limit of the memory control groups around this process, version 1 or 2, in
 * bytes; SIZE_MAX where there is none below the machine's memory.
 */
size_t ptac_cgroup_limit(void);

/* Bytes of memory in this machine; 0 when the system does not say. */
size_t ptac_physical_memory(void);

/* Addresses that RLIMIT_AS leaves, in bytes; SIZE_MAX where there is no such limit. */
size_t ptac_addresses_left(void);

/*
 * Whether less than a twentieth is left of the machine's memory, or of what the control
 * group may have. Caches that the kernel can drop count as left.
 */
bool ptac_memory_is_short(void);

#endif
