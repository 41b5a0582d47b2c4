/*
 * module.c - the module pai_torchacc._C: meeting the torch and the CPU of this process.
 *
 * Thin on purpose, like its neighbours: what a switch does is decided in the Python
 * package, what a call does in csrc/bind/torch. The functions are private to the
 * package. What they remember belongs to the process and holds Python objects, so that
 * only one interpreter can have them.
 */
#include "bind/python/module/names.h"

#include <string.h>

/* load(folder of libtorch, symbols to hide or None) -> a symbol that lacks, or None */
PTAC_VARARGS(load)
{
    const char *directory, *hidden;

    if (!PyArg_ParseTuple(args, "sz", &directory, &hidden))
        return NULL;

    const char *missing = ptac_torch_load(directory, hidden);

    if (!missing)
        ptac_host_install();
    return Py_BuildValue("z", missing);
}

/* symbols() -> {symbol of libtorch: whether it was found} */
PTAC_NOARGS(symbols)
{
    PyObject *found = PyDict_New();

#define F(type, name, parameters)                                                      \
    ptac_put(&found, #name, PyBool_FromLong(T.name != NULL));
#define M(type, name, symbol, parameters) F(type, name, parameters)
    PTAC_TORCH_ALL(F, M)
#undef F
#undef M
    return found;
}

/* cpu() -> ("vendor-family-model", instruction set in use) */
PTAC_GIVES(cpu, Py_BuildValue("ss", ptac_cpu_model(), ptac_isa_name(ptac_cpu_isa())))

/* limit_isa(name): run only rows of "scalar", "avx2" or "avx512" and below. */
PTAC_O(limit_isa, name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);

    for (int isa = PTAC_ISA_SCALAR; text && isa <= PTAC_ISA_AVX512; isa++) {
        if (strcmp(text, ptac_isa_name((ptac_isa)isa)) == 0) {
            ptac_cpu_limit((ptac_isa)isa);
            Py_RETURN_NONE;
        }
    }
    if (text)
        PyErr_Format(PyExc_ValueError,
                     "unknown instruction set %R: scalar, avx2 or avx512", name);
    return NULL;
}

/*
 * Views of n plain tensors that are contiguous, of one length, and all of the first
 * one's dtype, which may be doubles where doubles says so; false with TypeError set.
 */
static bool sample_views(PyObject *const *tensors, int n, bool doubles,
                         ptac_view *views)
{
    for (int i = 0; i < n; i++) {
        ptac_view *view = &views[i];

        if (!ptac_is_plain(tensors[i]))
            return PyErr_Format(PyExc_TypeError, "a plain tensor is expected");
        ptac_view_of(ptac_borrow(tensors[i]), view);
        if ((view->dtype != PTAC_F32 && !(doubles && view->dtype == PTAC_F64)) ||
            view->dtype != views[0].dtype || view->n_elements != views[0].n_elements ||
            !ptac_view_is_contiguous(view))
            return PyErr_Format(PyExc_TypeError,
                                "contiguous floats of one length are expected");
    }
    return true;
}

/* learn_sqrt(x, torch.sqrt(x)) -> whether we know how this torch rounds roots. */
PTAC_VARARGS(learn_sqrt)
{
    PyObject *tensors[2]; /* x, roots */
    ptac_view views[2];

    if (!PyArg_ParseTuple(args, "OO", &tensors[0], &tensors[1]) ||
        !sample_views(tensors, 2, true, views))
        return NULL;
    return PyBool_FromLong(ptac_learn_sqrt(&views[0], &views[1]));
}

/* learn_fma(a, b, alpha, torch.add(a, b, alpha=alpha)) -> likewise for products. */
PTAC_VARARGS(learn_fma)
{
    PyObject *tensors[3]; /* a, b, sum */
    ptac_view views[3];
    double alpha;

    if (!PyArg_ParseTuple(args, "OOdO", &tensors[0], &tensors[1], &alpha,
                          &tensors[2]) ||
        !sample_views(tensors, 3, false, views))
        return NULL;
    return PyBool_FromLong(
        ptac_learn_fma(&views[0], &views[1], (float)alpha, &views[2]));
}

static ptac_lent *all_lent;

void ptac_lent_announce(ptac_lent *lent)
{
    lent->next = all_lent;
    all_lent = lent;
}

/* lend(name=object, ...): what the files with PTAC_LENT(name) use from now on. */
PTAC_METHOD(lend, METH_VARARGS | METH_KEYWORDS, PyObject *args, PyObject *objects)
{
    PyObject *name, *object;
    Py_ssize_t at = 0;

    while (objects && PyDict_Next(objects, &at, &name, &object)) {
        const ptac_lent *lent = all_lent;

        while (lent && PyUnicode_CompareWithASCIIString(name, lent->name) != 0)
            lent = lent->next;
        if (!lent)
            return PyErr_Format(PyExc_TypeError, "nothing of the name %R is used",
                                name);
        ptac_keep(lent->home, object);
    }
    Py_RETURN_NONE;
}

static ptac_method *announced;

void ptac_method_announce(ptac_method *method)
{
    method->next = announced;
    announced = method;
}

/* The interpreter that has the module; objects of one that has ended are gone. */
static int64_t home = -1;
static bool home_has_ended;

static void note_end(void)
{
    home_has_ended = true;
}

static bool is_at_home(void)
{
    const int64_t here = PyInterpreterState_GetID(PyInterpreterState_Get());

    if (here < 0)
        return false;
    if (home < 0 && Py_AtExit(note_end) == 0)
        home = here;
    if (home == here && !home_has_ended)
        return true;
    return PyErr_Format(
        PyExc_ImportError,
        "pai_torchacc._C can be imported by one interpreter of a process");
}

static int execute(PyObject *module)
{
    if (!is_at_home() || !ptac_names_intern())
        return -1;
    for (ptac_lent *lent = all_lent; lent; lent = lent->next)
        ptac_keep(lent->home, Py_None);
    for (ptac_method *method = announced; method; method = method->next)
        if (PyModule_AddFunctions(module, method->table) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        .m_name = "pai_torchacc._C", .m_slots = slots};

PyMODINIT_FUNC PyInit__C(void)
{
    return PyModuleDef_Init(&definition);
}
