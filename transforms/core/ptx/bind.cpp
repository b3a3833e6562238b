// Python's view of the PTX interpreter: decoded kernels in as arrays of integers, what blocks stored out.
#include <algorithm>
#include <memory>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "ptx/machine.hpp"

namespace nb = nanobind;

namespace superopt::ptx {
namespace {

using Ints = nb::ndarray<const i64, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Plane = nb::ndarray<const u64, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
constexpr std::size_t kInstrFields = 9, kArgFields = 2;

Program decoded(const Ints &code, const Ints &args, std::size_t registers) {
  if (code.shape(1) != kInstrFields || args.shape(1) != kArgFields)
    throw std::invalid_argument("expected instructions of 9 fields and operands of 2");
  Program p;
  p.registers = registers;
  for (std::size_t i = 0; i < code.shape(0); ++i) {
    const i64 *f = code.data() + i * kInstrFields;
    p.code.push_back({static_cast<Op>(f[0]), static_cast<u8>(f[1]), static_cast<u8>(f[2]),
                      static_cast<i32>(f[3]), f[4] != 0, static_cast<u32>(f[5]), static_cast<u32>(f[6]), f[7],
                      static_cast<u32>(f[8])});
    if (f[0] < 0 || f[0] >= static_cast<i64>(std::size(kOps)) || f[3] >= static_cast<i64>(registers) ||
        f[5] < 0 || f[6] < 0 || f[5] + f[6] > static_cast<i64>(args.shape(0)))
      throw std::invalid_argument("expected instructions whose operands exist");
  }
  for (std::size_t i = 0; i < args.shape(0); ++i) {
    const i64 *a = args.data() + i * kArgFields;
    if (a[0] < -2 || a[0] >= static_cast<i64>(registers))
      throw std::invalid_argument("expected operands that exist");
    p.args.push_back({static_cast<i32>(a[0]), static_cast<u64>(a[1])});
  }
  return p;
}

template <class T> nb::ndarray<nb::numpy, T, nb::ndim<1>> array(const std::vector<T> &values) {
  auto data = std::make_unique<T[]>(values.size());
  std::copy(values.begin(), values.end(), data.get());
  T *raw = data.release();
  nb::capsule owner(raw, [](void *p) noexcept { delete[] static_cast<T *>(p); });
  return {raw, {values.size()}, owner};
}

// A launch: a program, a point, and memory; blocks run one at a time.
struct Launch {
  Program program;
  std::vector<Plane> held; // keeps the buffers' contents alive
  std::unique_ptr<Numbers> numbers;
  std::unique_ptr<Machine> machine;
};

} // namespace
} // namespace superopt::ptx

using namespace superopt::ptx;

NB_MODULE(_ptx, m) {
  nb::set_leak_warnings(false);
  m.attr("__doc__") = "superopt PTX core: runs blocks of a kernel over prime fields";
  nb::exception<Illegal>(m, "Illegal", PyExc_RuntimeError);
  nb::exception<Unknown>(m, "Unknown", PyExc_RuntimeError);
  nb::exception<TooManyLeaves>(m, "TooManyLeaves", PyExc_MemoryError);
  m.def(
      "ops",
      [] {
        std::map<std::string, int> numbers;
        for (std::size_t i = 0; i < std::size(kOps); ++i)
          numbers[kOps[i]] = static_cast<int>(i);
        return numbers;
      },
      "the operations by name");
  using Given =
      std::tuple<std::size_t, int, bool, std::optional<Plane>, std::optional<Plane>, std::vector<u64>>;
  nb::class_<Launch>(m, "Launch", "A kernel with a point of the fields and its memory.")
      .def(
          "__init__",
          [](Launch *self, const Ints &code, const Ints &args, std::size_t registers, std::size_t threads,
             std::size_t shared, u64 p, u64 q, u64 root, u64 order,
             const std::vector<std::array<u64, 4>> &functions, const std::vector<Given> &buffers,
             const std::vector<std::pair<u32, u32>> &pointers, i32 sharedStart,
             const std::vector<std::array<u64, 2>> &joins) {
            new (self) Launch{decoded(code, args, registers), {}, nullptr, nullptr};
            Point point{p, q, root, order, {}, joins};
            if (!joins.empty() && joins.size() != 4)
              throw std::invalid_argument("expected joins of minima and maxima for both planes, or none");
            if (functions.size() != point.functions.size())
              throw std::invalid_argument("expected the keys of every function");
            std::copy(functions.begin(), functions.end(), point.functions.begin());
            std::vector<Buffer> made;
            for (const auto &[elements, type, writable, first, second, keys] : buffers) {
              if (keys.size() > 2 || (first && !keys.empty()))
                throw std::invalid_argument("expected contents, or keys to draw them");
              const std::size_t period = first ? first->size() : elements;
              for (const auto &plane : {first, second})
                if (plane) {
                  if (plane->size() != period || (period == 0 && elements != 0))
                    throw std::invalid_argument("expected as many residues modulo both primes");
                  self->held.push_back(*plane);
                }
              made.push_back({elements, static_cast<Type>(type), writable,
                              first ? first->data() : nullptr, second ? second->data() : nullptr, period, keys});
            }
            for (const auto &[reg, buffer] : pointers)
              if (reg >= registers || buffer > made.size())
                throw std::invalid_argument("expected registers and buffers that exist");
            if (sharedStart < -1 || sharedStart >= static_cast<i64>(registers))
              throw std::invalid_argument("expected a register that exists");
            self->numbers = std::make_unique<Numbers>(point);
            self->machine = std::make_unique<Machine>(self->program, *self->numbers, made, threads, shared,
                                                      pointers, sharedStart);
          },
          nb::arg("code"), nb::arg("args"), nb::arg("registers"), nb::arg("threads"), nb::arg("shared"),
          nb::arg("p"), nb::arg("q"), nb::arg("root"), nb::arg("order"), nb::arg("functions"),
          nb::arg("buffers"), nb::arg("pointers"), nb::arg("shared_start"), nb::arg("joins"))
      .def(
          "run",
          [](Launch &self, const std::vector<std::pair<u32, std::vector<u64>>> &preset) {
            for (const auto &[reg, values] : preset)
              if (reg >= self.program.registers)
                throw std::invalid_argument("expected registers that exist");
            nb::gil_scoped_release release;
            self.machine->run(preset);
          },
          nb::arg("preset"), "runs one block; registers start as given")
      .def(
          "run_region",
          [](Launch &self, const std::vector<std::pair<u32, std::vector<u64>>> &preset,
             const std::vector<std::array<i64, 5>> &axes,
             const std::vector<std::pair<u32, std::vector<i64>>> &slopes)
              -> std::optional<std::tuple<std::size_t, i64, i64, i64>> {
            if (axes.size() > kAxes)
              throw std::invalid_argument("expected fewer axes");
            Region region;
            region.axes = axes.size();
            for (std::size_t j = 0; j < axes.size(); ++j) {
              if (axes[j][0] > axes[j][1] || axes[j][1] > axes[j][2] || axes[j][2] >= axes[j][3] ||
                  axes[j][4] <= static_cast<i64>(j))
                throw std::invalid_argument("expected a block in its region");
              region.low[j] = axes[j][0], region.at[j] = axes[j][1], region.high[j] = axes[j][2];
              region.extent[j] = axes[j][3];
              region.next[j] = std::min(static_cast<std::size_t>(axes[j][4]), kAxes);
              if (region.next[j] >= axes.size() && region.next[j] != kAxes)
                throw std::invalid_argument("expected an axis that there is");
            }
            std::vector<std::pair<u32, Slope>> given;
            for (const auto &[reg, s] : slopes) {
              if (reg >= self.program.registers || s.size() != axes.size())
                throw std::invalid_argument("expected registers that exist, and a slope along each axis");
              given.emplace_back(reg, Slope{});
              std::copy(s.begin(), s.end(), given.back().second.begin());
            }
            for (const auto &[reg, values] : preset)
              if (reg >= self.program.registers)
                throw std::invalid_argument("expected registers that exist");
            nb::gil_scoped_release release;
            try {
              self.machine->run(preset, region, given);
            } catch (const Split &split) {
              return std::tuple{split.axis, split.extent, split.first, split.last};
            }
            return std::nullopt;
          },
          nb::arg("preset"), nb::arg("axes"), nb::arg("slopes"),
          "runs one block, and finds those around it that do the same: by axis first, this and last coordinate, "
          "how many there are, and which axis carries on; returns an axis to split, and by what, or nothing; with 0 "
          "two coordinates between which blocks are to have axes of their own")
      .def_prop_ro(
          "region",
          [](const Launch &self) {
            std::vector<std::pair<i64, i64>> found;
            if (const auto &region = self.machine->region())
              for (std::size_t j = 0; j < region->axes; ++j)
                found.emplace_back(region->low[j], region->high[j]);
            return found;
          },
          "by axis, the first and the last block that do the same as the last one that ran")
      .def(
          "reached",
          [](const Launch &self, std::size_t buffer) {
            std::vector<u64> places;
            std::vector<u32> slopes;
            for (const auto &[place, slope] : self.machine->reached(buffer)) {
              places.push_back(place);
              slopes.push_back(slope);
            }
            return std::make_tuple(array(places), array(slopes));
          },
          nb::arg("buffer"),
          "places of a buffer that the last block accessed, and which of `slopes` they move along")
      .def_prop_ro(
          "slopes", [](const Launch &self) { return self.machine->slopes(); },
          "elements or bytes by axis, by number")
      .def_prop_ro(
          "scratch_slope", [](const Launch &self) { return self.machine->scratchSlope(); },
          "by how many bytes scratch moves along each axis")
      .def(
          "plant",
          [](Launch &self, const std::vector<u32> &places, const Ints &code, const Ints &args) {
            Program faults = decoded(code, args, self.program.registers);
            if (places.size() != faults.code.size() ||
                std::ranges::any_of(places, [&](u32 at) { return at >= self.program.code.size(); }))
              throw std::invalid_argument("expected a place in the program for each fault");
            std::map<u32, Instr> planted;
            for (std::size_t i = 0; i < places.size(); ++i) {
              faults.code[i].first += static_cast<u32>(self.program.args.size());
              planted[places[i]] = faults.code[i];
            }
            self.program.args.insert(self.program.args.end(), faults.args.begin(), faults.args.end());
            self.machine->setFaults(std::move(planted));
          },
          nb::arg("places"), nb::arg("code"), nb::arg("args"),
          "makes undefined what other instructions at these places would compute differently")
      .def_prop_ro(
          "differences", [](const Launch &self) { return self.machine->differences(); },
          "how many registers and cells of memory planted faults have changed so far")
      .def(
          "stored",
          [](const Launch &self, std::size_t buffer) {
            std::vector<u64> places, values, atomics;
            for (const auto &[place, s] : self.machine->stored().at(buffer)) {
              places.push_back(place);
              values.push_back(s.value.a);
              atomics.push_back(s.atomic);
            }
            return std::make_tuple(array(places), array(values), array(atomics));
          },
          nb::arg("buffer"),
          "places of a buffer, the residues that the last block stored there, and which atomic did, from one")
      .def_prop_rw(
          "left", [](const Launch &self) { return self.machine->left(); },
          [](Launch &self, u64 operations) { self.machine->setLeft(operations); },
          "operations of threads that blocks may take from now on")
      .def_prop_ro(
          "scratch", [](const Launch &self) { return self.machine->scratch(); },
          "the bytes of scratch that the last block used: the first, and the one after the last")
      .def_prop_ro(
          "counts",
          [](const Launch &self) {
            const Counts &c = self.machine->counts();
            std::map<std::string, std::vector<u64>> out;
            const auto list = [](const auto &x) { return std::vector<u64>(x.begin(), x.end()); };
            out["sectors"] = list(c.sectors);
            out["needed_sectors"] = list(c.neededSectors);
            out["wavefronts"] = list(c.wavefronts);
            out["ideal_wavefronts"] = list(c.idealWavefronts);
            out["executed"] = c.executed;
            out["waits"] = c.waits;
            out["in_flight"] = c.inFlight;
            return out;
          },
          "what all blocks so far did, by kind of access");
}
