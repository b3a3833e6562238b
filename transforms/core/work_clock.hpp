// The clock for budgets: counts work, not waiting, so that a busy machine finds what an idle one finds.
#pragma once

#include <atomic>
#include <ctime>

namespace superopt {

// Processor seconds of the calling thread so far.
inline double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The thread that does the work starts and reads it; helping threads charge theirs.
class WorkClock {
public:
  double seconds() const { return thread_seconds() - start_ + helped_.load(std::memory_order_relaxed); }
  double helped() const { return helped_.load(std::memory_order_relaxed); }
  void charge(double seconds) { helped_.fetch_add(seconds, std::memory_order_relaxed); }

private:
  double start_ = thread_seconds();
  std::atomic<double> helped_{0};
};

} // namespace superopt
