/*
 * memory.c - the memory pool's switch, for Python.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/allocator/cpu_allocator.h"
#include "core/scratch.h"
#include "mem/cpu/memory_limits.h"

#include <malloc.h>
#include <string.h>

/* pool_enable(route, policy, cap, reserve, history, idle_s, fill): None, or trouble. */
PTAC_VARARGS(pool_enable)
{
    ptac_cpu_pool_options options = {0};
    const ptac_cpu_route *route;
    const char *way, *policy;
    int fill;

    if (!PyArg_ParseTuple(args, "sskkkli", &way, &policy, &options.cap,
                          &options.reserve_bytes, &options.n_history, &options.idle_s,
                          &fill))
        return NULL;
    options.policy = ptac_policy_find(policy);
    options.fill = (ptac_fill)fill;
    for (int i = 0; (route = ptac_cpu_route_at(i)) && strcmp(route->name, way) != 0;)
        i++;
    if (!options.policy || !route)
        return PyErr_Format(PyExc_ValueError, "there is no policy %s, or no route %s",
                            policy, way);
    return Py_BuildValue("z",
                         PTAC_UNLOCKED(ptac_cpu_allocator_enable(route, &options)));
}

/* pool_disable(): requests go to libc; blocks in use still come back. */
PTAC_DOES(pool_disable, PTAC_UNLOCKED((ptac_cpu_allocator_disable(), 0)))

/* pool_routes() -> names of the ways to torch's allocator, the best first */
PTAC_LIST(pool_routes, ptac_cpu_route_at(i),
          PyUnicode_FromString(ptac_cpu_route_at(i)->name))

/* pool_policies() -> names of the placement policies */
PTAC_LIST(pool_policies, ptac_policy_at(i),
          PyUnicode_FromString(ptac_policy_at(i)->name))

/*
 * malloc_keeps(whether): glibc's malloc maps nothing for itself and gives nothing back,
 * or does as it would by default; whether it can be told.
 */
PTAC_OF_NUMBER(malloc_keeps)
{
    bool is_done = false;

#ifdef __GLIBC__
    is_done = mallopt(M_MMAP_MAX, number ? 0 : 64 << 10) &&
              mallopt(M_TRIM_THRESHOLD, number ? -1 : 128 << 10);
    if (!number)
        malloc_trim(0);
#endif
    return PyBool_FromLong(is_done);
}

/* pool_state() -> ("off" | "on" | "draining", blocks still in use) */
PTAC_NOARGS(pool_state)
{
    static const char *const names[] = {"off", "on", "draining"};

    int64_t n_blocks;
    const ptac_cpu_state state = ptac_cpu_pool_state(&n_blocks);

    return Py_BuildValue("sl", names[state], n_blocks);
}

/* pool_trim() -> bytes given back that no block used */
PTAC_GIVES(pool_trim, PyLong_FromSize_t(PTAC_UNLOCKED(ptac_cpu_pool_trim())))

/* scratch_kept() -> bytes that kernels keep to work in */
PTAC_GIVES(scratch_kept, PyLong_FromSize_t(ptac_scratch_kept()))

/* scratch_clear() -> bytes given back of these */
PTAC_GIVES(scratch_clear, PyLong_FromSize_t(ptac_scratch_clear()))

/* pool_begin_probe(): this thread's requests go to libc now, and count nowhere. */
PTAC_DOES(pool_begin_probe, ptac_cpu_allocator_begin_probe())

/* pool_end_probe(): whether a request of this thread came to us since, and its free. */
PTAC_GIVES(pool_end_probe, PyBool_FromLong(ptac_cpu_allocator_end_probe()))

/* pool_plan_steps(whether steps that repeat are placed by a plan) */
PTAC_OF_NUMBER(pool_plan_steps)
{
    ptac_cpu_pool_plan_steps(number);
    Py_RETURN_NONE;
}

/* pool_end_step(): a step of training ends here. */
PTAC_DOES(pool_end_step, ptac_cpu_pool_end_step())

/* memory_limit() -> bytes that the control group may have, or None */
PTAC_NOARGS(memory_limit)
{
    const size_t limit = ptac_cgroup_limit();

    return limit == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(limit);
}
