/*
 * test_memory_limits.c - control groups of both versions, as their files would look.
 */
#include "mem/cpu/memory_limits.h"

#include "calls.h"
#include "files.h"
#include "unit.h"

#include <stdint.h>

#define GIB    ((size_t)1 << 30)
#define GROUPS "/sys/fs/cgroup"

static void machine(const char *groups)
{
    EXPECT(files_begin());
    calls_pretend_memory(64 * GIB);
    files_write("/proc/meminfo",
                "MemTotal: 64 kB\nMemFree: 1 kB\nMemAvailable: 60 kB\n");
    files_write("/proc/self/cgroup", groups);
}

static void back(void)
{
    calls_pretend_memory(0);
    files_end();
}

static size_t limit_with(const char *file, const char *content)
{
    files_write(file, content);
    return ptac_cgroup_limit();
}

static bool is_short_with(const char *file, const char *content)
{
    files_write(file, content);
    return ptac_memory_is_short();
}

UNIT(no_group_is_no_limit)
{
    EXPECT(files_begin());
    EXPECT(ptac_cgroup_limit() == SIZE_MAX);
    EXPECT(!ptac_memory_is_short());
    files_end();
    machine("0::/\n");
    EXPECT(ptac_cgroup_limit() == SIZE_MAX);
    EXPECT(limit_with(GROUPS "/memory.max", "max\n") == SIZE_MAX);
    EXPECT(!ptac_memory_is_short());
    back();
}

UNIT(version_2_has_the_least_of_all_above)
{
    machine("0::/user/task/step\n");
    files_write(GROUPS "/user/task/step/memory.max", "max\n");
    files_write(GROUPS "/user/task/memory.max", "4294967296\n");
    EXPECT(limit_with(GROUPS "/user/memory.max", "8589934592\n") == 4 * GIB);
    EXPECT(limit_with(GROUPS "/user/memory.max", "1073741824\n") == GIB);
    EXPECT(limit_with(GROUPS "/memory.max", "4096\n") == 4096);
    back();
}

UNIT(a_container_sees_its_limit_at_the_root)
{
    machine("4:memory:/docker/0123\n0::/docker/0123\n");
    EXPECT(limit_with(GROUPS "/memory/memory.limit_in_bytes", "2147483648\n") ==
           2 * GIB);
    back();
}

UNIT(version_1_is_found_whatever_else_is_mounted_with_it)
{
    const char *const mounts[] = {
        "5:cpu,cpuacct:/x\n4:memory:/a\n1:name=systemd:/\n0::/\n",
        "0::/y\n7:hugetlb,memory:/a\n", "7:memory,rdma:/a\n"};

    for (int i = 0; i < 3; i++) {
        machine(mounts[i]);
        EXPECT(limit_with(GROUPS "/memory/memory.limit_in_bytes",
                          "9223372036854771712\n") == SIZE_MAX);
        EXPECT(limit_with(GROUPS "/memory/a/memory.limit_in_bytes", "1073741824\n") ==
               GIB);
        back();
    }
    machine("7:memoryless:/a\n");
    EXPECT(limit_with(GROUPS "/memory/a/memory.limit_in_bytes", "1073741824\n") ==
           SIZE_MAX);
    back();
}

UNIT(a_limit_above_all_memory_is_none)
{
    machine("0::/a\n");
    EXPECT(limit_with(GROUPS "/a/memory.max", "68719476736\n") == SIZE_MAX);
    EXPECT(limit_with(GROUPS "/a/memory.max", "68719476735\n") == 64 * GIB - 1);
    EXPECT(limit_with(GROUPS "/a/memory.max", "rubbish\n") == SIZE_MAX);
    back();
}

/* Of 1,000,000 bytes, 950,000 is the line; caches of files count as left. */
UNIT(a_group_is_short_from_a_twentieth_on)
{
    machine("0::/a/b\n");
    files_write(GROUPS "/a/memory.max", "1000000\n");
    EXPECT(!is_short_with(GROUPS "/a/memory.current", "950000\n"));
    EXPECT(is_short_with(GROUPS "/a/memory.current", "950001\n"));
    EXPECT(!is_short_with(GROUPS "/a/memory.stat", "anon 9\ninactive_file 1\n"));
    EXPECT(is_short_with(GROUPS "/a/memory.current", "999999\n"));
    EXPECT(is_short_with(GROUPS "/a/memory.stat", "file 49999\nactive_file 49998\n"));
    EXPECT(!is_short_with(GROUPS "/a/memory.stat",
                          "inactive_file 1\nactive_file 49998\n"));
    EXPECT(!is_short_with(GROUPS "/a/memory.stat", "inactive_anon 5\nactive_file 9\n"
                                                   "slab_unreclaimable 9\n"
                                                   "slab_reclaimable 49990\n"));
    EXPECT(!is_short_with(GROUPS "/a/memory.stat",
                          "inactive_file 999990\nactive_file 999990\n"
                          "slab_reclaimable 18446744073709551615\n"));
    EXPECT(!is_short_with(GROUPS "/a/memory.stat", "anon 9\ninactive_file 99999999\n"));
    EXPECT(is_short_with(GROUPS "/a/memory.stat", "total_inactive_file 99999999\n"));
    back();

    machine("4:memory:/a\n");
    files_write(GROUPS "/memory/a/memory.limit_in_bytes", "1000000\n");
    EXPECT(is_short_with(GROUPS "/memory/a/memory.usage_in_bytes", "1000000\n"));
    EXPECT(!is_short_with(GROUPS "/memory/a/memory.stat",
                          "inactive_file 0\ntotal_inactive_file 200000\n"));
    EXPECT(is_short_with(GROUPS "/memory/a/memory.stat",
                         "active_file 200000\ntotal_inactive_file 0\n"));
    EXPECT(!is_short_with(GROUPS "/memory/a/memory.stat",
                          "total_inactive_file 10000\ntotal_active_file 40000\n"));
    back();
}

UNIT(a_machine_is_short_from_a_twentieth_on)
{
    machine("0::/\n");
    EXPECT(
        !is_short_with("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 100 kB\n"));
    EXPECT(is_short_with("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 99 kB\n"));
    EXPECT(
        !is_short_with("/proc/meminfo", "MemTotal: 2000 kB\n")); /* Linux before 3.14 */
    EXPECT(!is_short_with("/proc/meminfo", ""));
    back();
}
