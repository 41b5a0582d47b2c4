/*
 * results_theirs.cpp - stand-ins for torch's C++ functions.
 *
 * Their types cross a call as torch's do. results_ours.c calls them by our prototypes.
 */
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>

namespace
{
struct tensor {
    explicit tensor(const void *of) : impl(of)
    {
    }
    tensor(tensor &&other) noexcept : impl(other.impl)
    {
        other.impl = nullptr;
    }
    ~tensor()
    {
    }
    const void *impl;
};

struct ints {
    const int64_t *data;
    size_t size;
};

struct anything {
    long numbers[4];
};
} // namespace

extern "C" {
/* The result names the argument that a wrong call would have shifted. */
tensor theirs_adaptive(const tensor &x, const ints size)
{
    return tensor(size.size == 2 && size.data[1] == 7 ? x.impl : nullptr);
}

tensor theirs_avg_pool(const tensor &x, ints kernel, ints stride, ints padding,
                       bool ceil_mode, bool count_pad, std::optional<int64_t> divisor)
{
    const bool is_right = kernel.data[0] == 3 && stride.data[0] == 2 &&
                          padding.size == 1 && ceil_mode && !count_pad && divisor == 5;

    return tensor(is_right ? x.impl : nullptr);
}

std::tuple<tensor, tensor, tensor> theirs_gradients(
    const tensor &grad, const tensor &x, const tensor &w,
    std::optional<ints> bias_sizes, ints stride, ints padding, ints dilation,
    bool transposed, ints output_padding, int64_t groups, std::array<bool, 3> mask)
{
    const bool is_right =
        bias_sizes && bias_sizes->data[0] == 3 && stride.data[0] == 2 &&
        padding.size == 1 && dilation.data[1] == 7 && !transposed &&
        output_padding.size == 2 && groups == 9 && mask[0] && !mask[1] && mask[2];

    return {tensor(is_right ? grad.impl : nullptr), tensor(x.impl), tensor(w.impl)};
}

std::shared_ptr<anything> theirs_node()
{
    static const std::shared_ptr<anything> node =
        std::make_shared<anything>(anything{{1, 2, 3, 4}});

    return node;
}

long theirs_node_count()
{
    return theirs_node().use_count() - 1;
}
}
