#include "base/machine_profile.h"

#include <algorithm>

namespace headway {

double Curve::Seconds(double size) const {
  if (points.empty() || size <= 0.0) return 0.0;
  const auto seconds = [](const std::pair<double, double>& p) { return p.first / p.second; };
  if (size <= points.front().first) return size / points.front().second;
  if (size >= points.back().first) return size / points.back().second;
  const auto above = std::upper_bound(points.begin(), points.end(), size,
                                      [](double s, const auto& p) { return s < p.first; });
  const auto& low = *(above - 1);
  const double part = (size - low.first) / (above->first - low.first);
  return seconds(low) + part * (seconds(*above) - seconds(low));
}

double Curve::Rate(double size) const {
  const double seconds = Seconds(size);
  return seconds > 0.0 ? size / seconds : 0.0;
}

}  // namespace headway
