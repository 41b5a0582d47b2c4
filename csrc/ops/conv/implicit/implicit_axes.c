/*
 * implicit_axes.c - places and slots along an axis, and what taps meet there.
 */
#include "ops/conv/implicit/implicit.h"

static ptac_implicit_axis forward_axis(int in, int out, int kernel, int stride,
                                       int dilation, int pad)
{
    return (ptac_implicit_axis){
        .n_places = out,
        .n_source = in,
        .n_results = out,
        .source_step = stride,
        .lead = pad,
        .result_step = 1,
        .reach = (kernel - 1) * dilation / stride,
        .n_taps = kernel,
        .tap_step = dilation,
    };
}

/*
 * Result i takes tap t from grad_y's element (i + pad - t * dilation) / stride, where
 * that is whole: the tap is of the class t * dilation % stride.
 */
static ptac_implicit_axis data_axis(int in, int out, int kernel, int stride,
                                    int dilation, int pad)
{
    const int reach = (kernel - 1) * dilation / stride, skipped = pad / stride;

    return (ptac_implicit_axis){
        .n_places = (in - 1 + pad) / stride + 1 - skipped,
        .n_source = out,
        .n_results = in,
        .source_step = 1,
        .lead = reach - skipped,
        .result_step = stride,
        .start = pad % stride,
        .reach = reach,
        .n_taps = kernel,
        .tap_step = dilation,
        .is_data = true,
    };
}

/* What a tap meets: results of a class; in the source's copy a phase, and a slot. */
static int class_of(const ptac_implicit_axis *axis, int tap)
{
    return tap * axis->tap_step % axis->result_step;
}

static int phase_of(const ptac_implicit_axis *axis, int tap)
{
    return tap * axis->tap_step % axis->source_step;
}

static int slot_of(const ptac_implicit_axis *axis, int tap)
{
    const int slot = tap * axis->tap_step / (axis->source_step * axis->result_step);

    return axis->is_data ? axis->reach - slot : slot;
}

static int place_of_phase(const ptac_implicit_axis *axis, int phase)
{
    int i = 0;

    while (i < axis->n_phases && axis->phases[i] != phase)
        i++;
    return i;
}

/* Phases come again after as many taps as there are. */
static void find_phases(ptac_implicit_axis *axis)
{
    for (int tap = 0; tap < axis->n_taps && tap < axis->source_step; tap++) {
        const int phase = phase_of(axis, tap);

        if (place_of_phase(axis, phase) == axis->n_phases)
            axis->phases[axis->n_phases++] = phase;
    }
}

ptac_implicit_axis ptac_implicit_axis_of(bool is_data, int in, int out, int kernel,
                                         int stride, int dilation, int pad)
{
    ptac_implicit_axis axis =
        is_data ? data_axis(in, out, kernel, stride, dilation, pad)
                : forward_axis(in, out, kernel, stride, dilation, pad);

    find_phases(&axis);
    return axis;
}

/* A class's taps from tap on, along axis i and those behind it, into the list. */
static int list_taps(const ptac_implicit *plan, const ptac_implicit_class *class, int i,
                     ptac_implicit_tap tap, int64_t phase, ptac_implicit_tap *to)
{
    const ptac_implicit_axis *axis = &plan->axis[i];
    int n = 0;

    if (i == PTAC_N_AXES) {
        tap.at += (int)(phase * plan->phase_size);
        *to = tap;
        return 1;
    }
    for (int t = 0; t < axis->n_taps; t++)
        if (class_of(axis, t) == class->of[i])
            n += list_taps(plan, class, i + 1,
                           (ptac_implicit_tap){
                               tap.at * plan->slots[i] + slot_of(axis, t),
                               tap.weight * axis->n_taps + t,
                           },
                           phase * axis->n_phases +
                               place_of_phase(axis, phase_of(axis, t)),
                           to + n);
    return n;
}

void ptac_implicit_list_taps(ptac_implicit *plan)
{
    const int rows = plan->axis[1].result_step, columns = plan->axis[2].result_step;
    int n = 0;

    for (int i = 0; i < plan->n_classes; i++) {
        ptac_implicit_class *class = &plan->classes[i];

        *class = (ptac_implicit_class){
            .of = {i / columns / rows, i / columns % rows, i % columns},
            .first = n,
        };
        class->n =
            list_taps(plan, class, 0, (ptac_implicit_tap){0, 0}, 0, &plan->taps[n]);
        n += class->n;
    }
}
