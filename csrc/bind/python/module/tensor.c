/*
 * tensor.c - looking into torch.Tensor objects without asking Python.
 *
 * Two words of the running torch are learnt from sample tensors whose values torch
 * itself tells: where the object keeps its TensorImpl pointer (_cdata), and where the
 * TensorImpl keeps its dispatch key set (torch._C._dispatch_keys).
 */
#include "bind/python/module/names.h"

#include <dlfcn.h>
#include <malloc.h>

enum {
    FIRST_OFFSET = 16, /* behind refcount and type */
    LAST_OBJECT_OFFSET = 64,
    LAST_IMPL_OFFSET = 256,
};

static PyTypeObject *tensor_type, *parameter_type;
static Py_ssize_t impl_offset, keys_offset;
static uint64_t plain_keys, inference_keys;
static uint64_t cuda_keys, cuda_inference_keys; /* 0: not known */

/* The thread's dispatch state in torch: included and excluded keys, zero by default. */
static const char *state_symbol = "_ZN3c104impl26raw_local_dispatch_key_setE";
static uint64_t inference_state[2];
static uint64_t harmless_exclusions; /* torch < 2.13 leaves out names in backward */
static uint64_t cuda_autocast; /* what is excluded unless it is on; 0: not known */
static bool state_is_known;
static __thread const uint64_t *state_here;

PTAC_LENT(len_function_modes) /* torch's function that counts them */
PTAC_LENT(profiler_enabled)   /* torch's function that says so */
PTAC_LENT(forward_ad)         /* dictionary of the module, which tells of dual levels */
PTAC_LENT(increment_version)  /* the slower way to count a write */
PTAC_LENT(steal_tensor) /* the slower way from a capsule with a handle to a tensor */

static uint64_t word_at(const void *base, Py_ssize_t offset)
{
    return *(const uint64_t *)((const char *)base + offset);
}

at_tensor ptac_borrow(PyObject *tensor)
{
    return (at_tensor)((char *)tensor + impl_offset);
}

at_tensor ptac_borrow_or_null(PyObject *tensor)
{
    return tensor == Py_None ? NULL : ptac_borrow(tensor);
}

bool ptac_is_tensor(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);

    return type == tensor_type || type == parameter_type;
}

/* The key set of an exact Tensor or Parameter; 0 of anything else. */
static uint64_t keys_of(PyObject *tensor)
{
    if (!ptac_is_tensor(tensor) || !keys_offset)
        return 0;

    const void *impl = *(void *const *)ptac_borrow(tensor);

    return impl ? word_at(impl, keys_offset) : 0;
}

bool ptac_is_plain(PyObject *tensor)
{
    const uint64_t keys = keys_of(tensor);

    return keys != 0 && (keys == plain_keys || keys == inference_keys);
}

static bool are_all(bool (*is)(PyObject *), PyObject *const *tensors, int n,
                    int n_needed)
{
    for (int i = 0; i < n; i++)
        if ((i < n_needed || tensors[i] != Py_None) && !is(tensors[i]))
            return false;
    return true;
}

bool ptac_are_plain(PyObject *const *tensors, int n, int n_needed)
{
    return are_all(ptac_is_plain, tensors, n, n_needed);
}

bool ptac_are_plain_on(PyObject *const *tensors, int n, int n_needed, ptac_device *on)
{
    *on = ptac_is_plain_on_cuda(tensors[0]) ? PTAC_ON_CUDA : PTAC_ON_CPU;
    return are_all(*on == PTAC_ON_CUDA ? ptac_is_plain_on_cuda : ptac_is_plain, tensors,
                   n, n_needed);
}

bool ptac_is_plain_and_versioned(PyObject *tensor)
{
    const uint64_t keys = keys_of(tensor);

    return keys != 0 && keys == plain_keys && keys != inference_keys;
}

bool ptac_is_plain_on_cuda(PyObject *tensor)
{
    const uint64_t keys = keys_of(tensor);

    return keys != 0 && (keys == cuda_keys || keys == cuda_inference_keys);
}

bool ptac_is_plain_and_versioned_on_cuda(PyObject *tensor)
{
    const uint64_t keys = keys_of(tensor);

    return keys != 0 && keys == cuda_keys;
}

void ptac_bump_version(PyObject *tensor)
{
    if (T.bump_version) {
        T.bump_version(ptac_borrow(tensor));
        return;
    }

    PyObject *done = PyObject_CallFunctionObjArgs(increment_version, tensor, NULL);

    Py_XDECREF(done);
    PyErr_Clear();
}

int ptac_requires_grad(PyObject *tensor)
{
    if (T.requires_grad && impl_offset && ptac_is_tensor(tensor))
        return T.requires_grad(*(void **)ptac_borrow(tensor));
    return ptac_truth(tensor, ptac_names.requires_grad);
}

ptac_reason ptac_why_not_plain(PyObject *tensor)
{
    const bool is_sparse = ptac_truth(tensor, ptac_names.is_sparse) == 1;
    const bool is_cpu = ptac_truth(tensor, ptac_names.is_cpu) == 1;

    PyErr_Clear();
    return is_sparse ? PTAC_SPARSE : is_cpu ? PTAC_SUBCLASS : PTAC_DEVICE;
}

/* dlsym on a thread-local symbol gives the calling thread's own instance. */
static const uint64_t *find_state(void)
{
    void *c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    const uint64_t *found = dlsym(c10 ? c10 : RTLD_DEFAULT, state_symbol);

    if (c10)
        dlclose(c10);
    return found;
}

/*
 * No level of forward-mode differentiation is open. Tensors may then carry tangents,
 * which show in no key set, and which all nodes of torch's own pass on.
 */
static bool no_dual_level(void)
{
    PyObject *level = PyDict_GetItemWithError(forward_ad, ptac_names._current_level);
    const bool none = level && PyLong_CheckExact(level) && PyLong_AsLong(level) < 0;

    PyErr_Clear();
    return none;
}

bool ptac_has_function_mode(void)
{
    if (T.function_modes)
        return T.function_modes() != 0;

    PyObject *depth = PyObject_CallNoArgs(len_function_modes);
    const bool no_mode = depth && PyLong_AsLong(depth) == 0;

    Py_XDECREF(depth);
    PyErr_Clear();
    return !no_mode;
}

/* Whether the thread is plain but for what these keys change. */
static bool is_plain_beside(uint64_t keys)
{
    if (!state_is_known || !no_dual_level())
        return false;
    if (!state_here)
        state_here = find_state();

    const uint64_t included = state_here[0];
    const uint64_t excluded = state_here[1] & ~harmless_exclusions & ~keys;

    if ((included | excluded) != 0 &&
        (included != inference_state[0] || excluded != inference_state[1]))
        return false;

    return !ptac_has_function_mode();
}

bool ptac_thread_is_plain(void)
{
    return is_plain_beside(0);
}

bool ptac_thread_is_plain_on(ptac_device on)
{
    return is_plain_beside(on == PTAC_ON_CUDA ? cuda_autocast : 0);
}

bool ptac_thread_autocasts_on(ptac_device on)
{
    if (!state_here)
        state_here = find_state();
    return on == PTAC_ON_CUDA && state_here && (state_here[1] & cuda_autocast);
}

ptac_reason ptac_why_not_lean(void)
{
    return ptac_why_not_lean_on(PTAC_ON_CPU);
}

ptac_reason ptac_why_not_lean_on(ptac_device on)
{
    PyObject *profiled;

    if (!ptac_thread_is_plain_on(on))
        return PTAC_MODE;
    if (T.profiler_enabled)
        return T.profiler_enabled() ? PTAC_PROFILER : PTAC_TAKE;
    profiled = PyObject_CallNoArgs(profiler_enabled);
    Py_XDECREF(profiled);
    PyErr_Clear();
    return profiled == Py_False ? PTAC_TAKE : PTAC_PROFILER;
}

PyObject *ptac_wrap(at_tensor owned)
{
    if (T.THPVariable_Wrap) {
        PyObject *wrapped = T.THPVariable_Wrap(owned);

        T.aoti_torch_delete_tensor_object(owned);
        return wrapped;
    }

    PyObject *capsule = PyCapsule_New(owned, NULL, NULL);
    PyObject *wrapped =
        capsule ? PyObject_CallFunctionObjArgs(steal_tensor, capsule, NULL) : NULL;

    Py_XDECREF(capsule);
    if (!wrapped)
        T.aoti_torch_delete_tensor_object(owned);
    return wrapped;
}

PyObject *ptac_wrap_outputs(at_tensor first, at_tensor second)
{
    PyObject *one = ptac_wrap(first), *other, *both;

    if (!second)
        return one;
    other = ptac_wrap(second);
    both = one && other ? PyTuple_Pack(2, one, other) : NULL;
    Py_XDECREF(one);
    Py_XDECREF(other);
    return both;
}

/* The last offset of a word in an object of this type; -1 where the type tells none. */
static Py_ssize_t last_word(PyTypeObject *type)
{
    PTAC_OWNED PyObject *size =
        PyObject_GetAttr((PyObject *)type, ptac_names.__basicsize__);
    const Py_ssize_t bytes = size ? PyLong_AsSsize_t(size) : -1;

    PyErr_Clear();
    return bytes - (Py_ssize_t)sizeof(uint64_t);
}

static Py_ssize_t least(Py_ssize_t a, Py_ssize_t b)
{
    return a < b ? a : b;
}

/*
 * tensor_learn(Tensor, Parameter, samples): samples is a list of (tensor, _cdata, key
 * set), the first plain, the second made in inference mode, others of other kinds so
 * that a coincidence shows. Returns whether both offsets were found, and the first two
 * samples differ.
 */
PTAC_VARARGS(tensor_learn)
{
    enum { MAX_SAMPLES = 16 };
    PyObject *samples, *types[2];
    void *objects[MAX_SAMPLES], *impls[MAX_SAMPLES];
    uint64_t impl_words[MAX_SAMPLES], key_words[MAX_SAMPLES];
    Py_ssize_t last_of_objects = LAST_OBJECT_OFFSET, last_of_impls = LAST_IMPL_OFFSET;

    if (!PyArg_ParseTuple(args, "OOO!", &types[0], &types[1], &PyList_Type, &samples))
        return NULL;

    const Py_ssize_t n = PyList_Size(samples);

    if (n < 2 || n > MAX_SAMPLES)
        return PyErr_Format(PyExc_ValueError, "2 to 16 samples are expected");
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long cdata, keys;

        if (!PyArg_ParseTuple(PyList_GetItem(samples, i), "OKK", &objects[i], &cdata,
                              &keys))
            return NULL;
        impl_words[i] = cdata;
        impls[i] = (void *)(uintptr_t)cdata;
        key_words[i] = keys;
        last_of_objects = least(last_of_objects, last_word(Py_TYPE(objects[i])));
        last_of_impls = least(last_of_impls,
                              (Py_ssize_t)malloc_usable_size(impls[i]) - (Py_ssize_t)8);
    }
    Py_INCREF(types[0]);
    Py_INCREF(types[1]);
    tensor_type = (PyTypeObject *)types[0];
    parameter_type = (PyTypeObject *)types[1];
    plain_keys = key_words[0];
    inference_keys = key_words[1];
    keys_offset = 0;
    impl_offset =
        ptac_only_offset(objects, impl_words, (int)n, FIRST_OFFSET, last_of_objects);
    if (impl_offset && plain_keys != inference_keys)
        keys_offset =
            ptac_only_offset(impls, key_words, (int)n, FIRST_OFFSET, last_of_impls);
    return PyBool_FromLong(keys_offset != 0);
}

/* cuda_keys_learn(plain, inference): the key sets of plain tensors on CUDA devices. */
PTAC_VARARGS(cuda_keys_learn)
{
    unsigned long long plain, inference;

    if (!PyArg_ParseTuple(args, "KK", &plain, &inference))
        return NULL;
    cuda_keys = plain;
    cuda_inference_keys = inference;
    Py_RETURN_NONE;
}

/* thread_state(): this thread's two words, or None where torch does not show them. */
PTAC_NOARGS(thread_state)
{
    const uint64_t *state = find_state();

    return state ? Py_BuildValue("kk", state[0], state[1]) : Py_NewRef(Py_None);
}

/*
 * thread_learn(included, excluded, harmless, autocast): the two words as they are in
 * inference mode, exclusions that change nothing for plain tensors, and the key of
 * autocast on CUDA.
 */
PTAC_VARARGS(thread_learn)
{
    unsigned long long included, excluded, harmless, autocast;

    if (!PyArg_ParseTuple(args, "KKKK", &included, &excluded, &harmless, &autocast))
        return NULL;
    cuda_autocast = autocast;
    harmless_exclusions = harmless;
    inference_state[0] = included;
    inference_state[1] = excluded;
    state_is_known = true;
    Py_RETURN_NONE;
}

/* thread_is_plain() -> as ptac_thread_is_plain() */
PTAC_GIVES(thread_is_plain, PyBool_FromLong(ptac_thread_is_plain()))
