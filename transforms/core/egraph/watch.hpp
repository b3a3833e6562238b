// When long work must end: it has done what it may, or somebody asks it to.
#pragma once

#include "work_clock.hpp"

#include <functional>

namespace superopt::egraph {

class Watch {
public:
  // `stop` is asked a few times a second, since asking may cost much (it may take Python's lock).
  Watch(double seconds, std::function<bool()> stop) : seconds_(seconds), stop_(std::move(stop)) {}

  // Seconds of work since the watch was made.
  double seconds() const { return work_.seconds(); }

  // Why to end, or nullptr. Once there is a reason, it stays.
  const char *over() {
    if (why_)
      return why_;
    const double now = seconds();
    if (now > seconds_)
      return why_ = "budget";
    if (stop_ && now > asked_ + 0.1) {
      asked_ = now;
      if (stop_())
        why_ = "cancelled";
    }
    return why_;
  }

private:
  WorkClock work_;
  double seconds_, asked_ = -1;
  std::function<bool()> stop_;
  const char *why_ = nullptr;
};

} // namespace superopt::egraph
