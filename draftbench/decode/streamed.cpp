// Rows x [n, inputs] times a bfloat16 matrix [outputs, inputs] as it lies in memory: for few rows as
// fast as the matrix can be read. A sum is taken in the same order whatever n is, so that what
// becomes of a token does not depend on how many are read with it.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace {

using torch::stable::Tensor;

// Floats in a register, and weights in a line of the cache.
constexpr int LANES = 16, LINE = 2 * LANES;
// Rows of the matrix that are read beside each other, and the most rows of x whose sums fit into
// registers beside them.
constexpr int BESIDE = 4, MOST = 6;
// Weights that each row is asked for ahead of their use.
constexpr int64_t AHEAD = 1024;
// Bytes of the matrix that stay in a core's cache while all rows of x pass by.
constexpr int64_t KEPT = 1 << 18;
// Multiplications that are worth another thread.
constexpr int64_t WORK = 1 << 15;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

template <typename Value>
Value at(const void* from) {
  Value found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

float widened(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  return at<float>(&wide);
}

// To the nearest, ties to even; what is not a number stays so.
uint16_t narrowed(float value) {
  const auto bits = at<uint32_t>(&value);
  return value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Rows x as floats, the even places of each line before the odd ones: so two operations widen a
// line of weights.
std::vector<float> by_parity(const Tensor& x) {
  const int64_t inputs = x.size(1), apart = x.stride(0);
  const auto* given = static_cast<const uint16_t*>(x.const_data_ptr());
  std::vector<float> found(x.size(0) * inputs);
  torch::stable::parallel_for(0, x.size(0), WORK / inputs + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      for (int64_t line = 0; line < inputs; line += LINE) {
        const uint16_t* from = given + row * apart + line;
        float* to = found.data() + row * inputs + line;
        for (int lane = 0; lane < LANES; lane++) {
          to[lane] = widened(from[2 * lane]);
          to[LANES + lane] = widened(from[2 * lane + 1]);
        }
      }
    }
  });
  return found;
}

// BESIDE rows of the matrix times N rows of x, which `by_parity` arranged.
template <int N>
void multiply(const uint16_t* matrix, const float* x, int64_t inputs, const uint16_t* bias,
              int64_t outputs, uint16_t* out) {
  Floats sums[BESIDE][N] = {};
  const int64_t blocks = AHEAD / inputs, rest = AHEAD % inputs;
  for (int64_t line = 0; line < inputs; line += LINE) {
    // A processor foresees how a row goes on, not that the rows of the next call follow.
    const int64_t later = line + rest < inputs ? blocks : blocks + 1;
    const int64_t ahead = line + AHEAD + later * (BESIDE - 1) * inputs;
    for (int row = 0; row < BESIDE; row++) __builtin_prefetch(matrix + row * inputs + ahead);
    for (int parity = 0; parity < 2; parity++) {
      Floats weights[BESIDE];
      for (int row = 0; row < BESIDE; row++) {
        const auto pairs = at<Words>(matrix + row * inputs + line);
        const Words wide = parity == 0 ? pairs << 16 : pairs & 0xffff0000u;
        weights[row] = at<Floats>(&wide);
      }
      for (int n = 0; n < N; n++) {
        const auto values = at<Floats>(x + n * inputs + line + parity * LANES);
        for (int row = 0; row < BESIDE; row++) sums[row][n] += weights[row] * values;
      }
    }
  }
  for (int n = 0; n < N; n++) {
    for (int row = 0; row < BESIDE; row++) {
      float total = bias == nullptr ? 0 : widened(bias[row]);
      for (int lane = 0; lane < LANES; lane++) total += sums[row][n][lane];
      out[n * outputs + row] = narrowed(total);
    }
  }
}

template <int N, typename... Arguments>
void multiply_any(int64_t rows, Arguments... arguments) {
  if (rows == N) {
    multiply<N>(arguments...);
  } else if constexpr (N > 1) {
    multiply_any<N - 1>(rows, arguments...);
  }
}

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const int64_t rows = x.size(0), inputs = x.size(1), outputs = weight.size(0);
  STD_TORCH_CHECK(inputs % LINE == 0 && outputs % BESIDE == 0, "sizes that no line divides");
  STD_TORCH_CHECK(x.stride(1) == 1, "a row whose values are apart");
  Tensor out = torch::stable::new_empty(x, {rows, outputs});
  const std::vector<float> values = by_parity(x);
  const auto* matrix = static_cast<const uint16_t*>(weight.const_data_ptr());
  const auto* added = bias ? static_cast<const uint16_t*>(bias->const_data_ptr()) : nullptr;
  auto* results = static_cast<uint16_t*>(out.mutable_data_ptr());
  // Groups of nearly the same size: of 7 rows 3 and 4, not 6 and 1.
  const int64_t groups = (rows + MOST - 1) / MOST;
  const int64_t held = std::max<int64_t>(1, KEPT / (BESIDE * inputs * sizeof(uint16_t)));
  const auto part = [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block += held) {
      const int64_t first = block * BESIDE, last = std::min(block + held, end) * BESIDE;
      for (int64_t group = 0; group < groups; group++) {
        const int64_t from = rows * group / groups, to = rows * (group + 1) / groups;
        for (int64_t output = first; output < last; output += BESIDE) {
          multiply_any<MOST>(to - from, matrix + output * inputs, values.data() + from * inputs,
                             inputs, added ? added + output : nullptr, outputs,
                             results + from * outputs + output);
        }
      }
    }
  };
  torch::stable::parallel_for(0, outputs / BESIDE, WORK / (BESIDE * inputs) + 1, part);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(draftbench, library) {
  library.def("streamed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(draftbench, CPU, library) {
  library.impl("streamed_linear", TORCH_BOX(&linear));
}
