// Rows x [n, inputs] in bfloat16 times a matrix [outputs, inputs] of 16- or 8-bit weights: for few
// rows as fast as the matrix can be read. A sum is taken in the same order whatever n is, so that it
// does not depend on how many tokens are read together.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Floats in a register, and weights of a row that are taken at once.
constexpr int LANES = 16, STEP = 2 * LANES;
// Rows of the matrix that are read beside each other, and the most rows of x whose sums fit into
// registers beside them.
constexpr int BESIDE = 4, MOST = 6;
// Bytes of each row that are asked for ahead of their use, and bytes that come at once.
constexpr int64_t AHEAD = 2048, LINE = 64;
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

// What a matrix is made of. Either `half` of the STEP weights from the matrix's `first` on is LANES
// floats; `scaled` is what the sum of a row of the matrix stands for.

struct BFloat16 {
  // One operation widens every other weight of a step: half 0 is the even ones.
  static constexpr bool BY_PARITY = true;
  static constexpr int64_t STEP_BYTES = 2 * STEP;
  const uint16_t* weights;

  const void* place(int64_t first) const { return weights + first; }
  Floats half(int64_t first, int which) const {
    const auto pairs = at<Words>(weights + first);
    const Words wide = which == 0 ? pairs << 16 : pairs & 0xffff0000u;
    return at<Floats>(&wide);
  }
  float scaled(float sum, int64_t) const { return sum; }
};

struct Int8 {
  static constexpr bool BY_PARITY = false;
  static constexpr int64_t STEP_BYTES = STEP;
  const int8_t* codes;
  const float* scales;

  const void* place(int64_t first) const { return codes + first; }
  Floats half(int64_t first, int which) const {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(at<__m128i>(codes + first + which * LANES)));
  }
  float scaled(float sum, int64_t row) const { return sum * scales[row]; }
};

// Rows x as floats, each step in the order of its halves.
template <typename Matrix>
std::vector<float> arranged(const Tensor& x) {
  const int64_t inputs = x.size(1), apart = x.stride(0);
  const auto* given = static_cast<const uint16_t*>(x.const_data_ptr());
  std::vector<float> found(x.size(0) * inputs);
  torch::stable::parallel_for(0, x.size(0), WORK / inputs + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      for (int64_t first = 0; first < inputs; first += STEP) {
        const uint16_t* from = given + row * apart + first;
        float* to = found.data() + row * inputs + first;
        for (int lane = 0; lane < LANES; lane++) {
          to[lane] = widened(from[Matrix::BY_PARITY ? 2 * lane : lane]);
          to[LANES + lane] = widened(from[Matrix::BY_PARITY ? 2 * lane + 1 : LANES + lane]);
        }
      }
    }
  });
  return found;
}

// The matrix's rows from `output` on, BESIDE of them, times N rows of x, which `arranged` gave.
template <int N, typename Matrix>
void multiply(const Matrix& matrix, int64_t output, const float* x, int64_t inputs,
              const uint16_t* bias, int64_t outputs, uint16_t* out) {
  constexpr int64_t FORESEEN = AHEAD / Matrix::STEP_BYTES * STEP;
  constexpr int64_t IN_LINE = LINE / Matrix::STEP_BYTES * STEP;
  Floats sums[BESIDE][N] = {};
  const int64_t start = output * inputs, blocks = FORESEEN / inputs, rest = FORESEEN % inputs;
  for (int64_t from = 0; from < inputs; from += STEP) {
    if (from % IN_LINE == 0) {
      // A processor foresees how a row goes on, not that the rows of the next call follow.
      const int64_t later = from + rest < inputs ? blocks : blocks + 1;
      const int64_t ahead = start + from + FORESEEN + later * (BESIDE - 1) * inputs;
      for (int row = 0; row < BESIDE; row++) __builtin_prefetch(matrix.place(ahead + row * inputs));
    }
    for (int which = 0; which < 2; which++) {
      Floats weights[BESIDE];
      for (int row = 0; row < BESIDE; row++) {
        weights[row] = matrix.half(start + row * inputs + from, which);
      }
      for (int n = 0; n < N; n++) {
        const auto values = at<Floats>(x + n * inputs + from + which * LANES);
        for (int row = 0; row < BESIDE; row++) sums[row][n] += weights[row] * values;
      }
    }
  }
  for (int n = 0; n < N; n++) {
    for (int row = 0; row < BESIDE; row++) {
      float sum = 0;
      for (int lane = 0; lane < LANES; lane++) sum += sums[row][n][lane];
      const float added = bias == nullptr ? 0 : widened(bias[output + row]);
      out[n * outputs + output + row] = narrowed(matrix.scaled(sum, output + row) + added);
    }
  }
}

template <int N, typename Matrix, typename... Arguments>
void multiply_any(int64_t rows, const Matrix& matrix, Arguments... arguments) {
  if (rows == N) {
    multiply<N>(matrix, arguments...);
  } else if constexpr (N > 1) {
    multiply_any<N - 1>(rows, matrix, arguments...);
  }
}

template <typename Matrix>
Tensor linear(const Tensor& x, const Matrix& matrix, int64_t outputs,
              const std::optional<Tensor>& bias) {
  const int64_t rows = x.size(0), inputs = x.size(1);
  Tensor out = torch::stable::new_empty(x, {rows, outputs});
  const std::vector<float> values = arranged<Matrix>(x);
  const auto* added = bias ? static_cast<const uint16_t*>(bias->const_data_ptr()) : nullptr;
  auto* results = static_cast<uint16_t*>(out.mutable_data_ptr());
  // Groups of nearly the same size: of 7 rows 3 and 4, not 6 and 1.
  const int64_t groups = (rows + MOST - 1) / MOST;
  const int64_t row_bytes = inputs / STEP * Matrix::STEP_BYTES;
  const int64_t held = std::max<int64_t>(1, KEPT / (BESIDE * row_bytes));
  const auto part = [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block += held) {
      const int64_t first = block * BESIDE, last = std::min(block + held, end) * BESIDE;
      for (int64_t group = 0; group < groups; group++) {
        const int64_t from = rows * group / groups, to = rows * (group + 1) / groups;
        for (int64_t output = first; output < last; output += BESIDE) {
          multiply_any<MOST>(to - from, matrix, output, values.data() + from * inputs, inputs, added,
                             outputs, results + from * outputs);
        }
      }
    }
  };
  torch::stable::parallel_for(0, outputs / BESIDE, WORK / (BESIDE * inputs) + 1, part);
  return out;
}

// What the kernels rely on: whoever calls them with something else gets an error and no number.
void check(const Tensor& x, const Tensor& matrix, ScalarType type,
           const std::optional<Tensor>& bias) {
  STD_TORCH_CHECK(x.dim() == 2 && matrix.dim() == 2, "not rows and a matrix");
  STD_TORCH_CHECK(x.size(1) == matrix.size(1), "rows of another size than the matrix's");
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16 && matrix.scalar_type() == type,
                  "another type than the kernel's");
  STD_TORCH_CHECK(matrix.numel() > 0 && matrix.size(1) % STEP == 0 && matrix.size(0) % BESIDE == 0,
                  "sizes that no step divides");
  STD_TORCH_CHECK(x.stride(1) == 1, "a row whose values are apart");
  STD_TORCH_CHECK(matrix.is_contiguous(), "a matrix whose values are apart");
  STD_TORCH_CHECK(!bias || (bias->scalar_type() == ScalarType::BFloat16 && bias->is_contiguous() &&
                            bias->numel() == matrix.size(0)),
                  "a bias that is not one of each output");
}

Tensor bfloat16_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check(x, weight, ScalarType::BFloat16, bias);
  const BFloat16 matrix{static_cast<const uint16_t*>(weight.const_data_ptr())};
  return linear(x, matrix, weight.size(0), bias);
}

Tensor int8_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                   const std::optional<Tensor>& bias) {
  check(x, codes, ScalarType::Char, bias);
  STD_TORCH_CHECK(scales.scalar_type() == ScalarType::Float && scales.is_contiguous() &&
                      scales.numel() == codes.size(0),
                  "scales that are not one of each output");
  const Int8 matrix{static_cast<const int8_t*>(codes.const_data_ptr()),
                    static_cast<const float*>(scales.const_data_ptr())};
  return linear(x, matrix, codes.size(0), bias);
}

}  // namespace

STABLE_TORCH_LIBRARY(draftbench, library) {
  library.def("bfloat16_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  library.def("int8_linear(Tensor x, Tensor codes, Tensor scales, Tensor? bias) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(draftbench, CPU, library) {
  library.impl("bfloat16_linear", TORCH_BOX(&bfloat16_linear));
  library.impl("int8_linear", TORCH_BOX(&int8_linear));
}
