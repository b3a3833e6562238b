// When long work must end: its budget is spent, or the caller stops it.
#pragma once

#include "work_clock.hpp"

#include <functional>

namespace superopt::egraph {

class Watch {
public:
  // `stop` is called a few times a second, since a call may be slow (it may take Python's lock).
  Watch(double seconds, std::function<bool()> stop) : seconds_(seconds), stop_(std::move(stop)) {}

  // Seconds of work since the watch was made.
  double seconds() const { return work_.seconds(); }

  // Why to end, or nullptr. A reason, once given, stays.
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
