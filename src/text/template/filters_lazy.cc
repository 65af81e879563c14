// Filters that return generators. Like jinja2's they do nothing, fail included, before the first
// item is asked for.
#include <fmt/format.h>

#include <optional>

#include "text/template/filters.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// A generator over `input`: Begin before the first item, Step for each.
class Generator : public Iterator {
 public:
  Generator(Value input, Args args) : input_(std::move(input)), args_(std::move(args)) {}

  bool Next(Runtime& rt, Value* out) override {
    const Nested nested(rt);  // generators over generators
    if (!nested.ok() || !rt.Charge(1) || done_) return false;
    if (source_ == nullptr) {
      source_ = Begin(rt);
      done_ = source_ == nullptr || rt.failed();
      if (done_) return false;
    }
    Value item;
    while (source_->Next(rt, &item)) {
      if (Step(rt, item, out)) return !rt.failed();
      if (rt.failed()) return false;
    }
    done_ = true;
    return false;
  }

  void Clear() override {
    done_ = true;
    source_.reset();
    input_ = Value();
    args_ = Args();
  }

 protected:
  // Where the items come from; null for none. By default: those of the input, unless it is false.
  virtual std::shared_ptr<Iterator> Begin(Runtime& rt) {
    if (!Truthy(input_) || !Prepare(rt)) return nullptr;
    return Iterate(rt, input_);
  }
  // Looks at the arguments; false to stop.
  virtual bool Prepare(Runtime& rt) { return !rt.failed(); }
  // Gives what comes out for `item`; false when nothing does.
  virtual bool Step(Runtime& rt, const Value& item, Value* out) = 0;

  Value input_;
  Args args_;

 private:
  std::shared_ptr<Iterator> source_;
  bool done_ = false;
};

// The filter or test that an argument names, with the arguments that follow it.
struct NamedCall {
  Function function = nullptr;
  Args args;
};

bool PrepareCall(Runtime& rt, const Args& args, size_t at, bool is_test, NamedCall* call) {
  const Value& name = args.positional[at];
  const char* what = is_test ? "test" : "filter";
  const NamedFunction* found = nullptr;
  if (name.string()) found = is_test ? FindTest(name.text()) : FindFilter(name.text());
  if (found == nullptr || found->function == nullptr) {
    std::string shown;
    AppendStr(rt, name, &shown);
    rt.Fail(StatusCode::kUnsupported, fmt::format("no {} named '{}'", what, shown));
    return false;
  }
  call->function = found->function;
  call->args.named = args.named;
  call->args.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(at) + 1,
                               args.positional.end());
  return true;
}

class MapGenerator : public Generator {
 public:
  using Generator::Generator;

 protected:
  bool Prepare(Runtime& rt) override {
    if (!args_.positional.empty()) return PrepareCall(rt, args_, 0, false, &call_);
    Value attribute = Value::Missing();
    for (const auto& [name, value] : args_.named) {
      if (name == "attribute") attribute = value;
      if (name == "default") fallback_ = value;
    }
    if (attribute.missing() || args_.named.size() > (fallback_.missing() ? 1u : 2u)) {
      rt.Fail("map needs a filter, or 'attribute' with or without 'default'");
      return false;
    }
    path_.emplace(rt, attribute);
    return !rt.failed();
  }

  bool Step(Runtime& rt, const Value& item, Value* out) override {
    *out =
        path_.has_value() ? path_->Get(rt, item, fallback_) : call_.function(rt, item, call_.args);
    return true;
  }

 private:
  NamedCall call_;
  std::optional<AttributePath> path_;
  Value fallback_ = Value::Missing();
};

class SelectGenerator : public Generator {
 public:
  SelectGenerator(Value input, Args args, bool keep, bool by_attribute)
      : Generator(std::move(input), std::move(args)), keep_(keep), by_attribute_(by_attribute) {}

 protected:
  bool Prepare(Runtime& rt) override {
    const size_t at = by_attribute_ ? 1 : 0;
    if (args_.positional.size() < at) {
      rt.Fail("selectattr and rejectattr need the name of an attribute");
      return false;
    }
    if (by_attribute_) path_.emplace(rt, args_.positional[0]);
    if (args_.positional.size() == at) return true;
    return PrepareCall(rt, args_, at, true, &call_);
  }

  bool Step(Runtime& rt, const Value& item, Value* out) override {
    const Value subject = by_attribute_ ? path_->Get(rt, item, Value::None()) : item;
    const Value verdict =
        call_.function == nullptr ? subject : call_.function(rt, subject, call_.args);
    *out = item;
    return Truthy(verdict) == keep_;
  }

 private:
  const bool keep_;
  const bool by_attribute_;
  NamedCall call_;
  std::optional<AttributePath> path_;
};

class UniqueGenerator : public Generator {
 public:
  UniqueGenerator(Value input, bool case_sensitive, const AttributePath& path)
      : Generator(std::move(input), Args()), case_sensitive_(case_sensitive), path_(path) {}

 protected:
  std::shared_ptr<Iterator> Begin(Runtime& rt) override { return Iterate(rt, input_); }

  bool Step(Runtime& rt, const Value& item, Value* out) override {
    Value key = path_.Get(rt, item, Value::None());
    if (!case_sensitive_) key = IgnoreCase(rt, key);
    const size_t before = seen_.size();
    seen_.Set(rt, key, Value::None());
    *out = item;
    return seen_.size() > before;
  }

 private:
  const bool case_sensitive_;
  const AttributePath path_;
  Dict seen_;
};

Value ItemsFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "items", {}, 0);
  if (self.undefined()) return rt.Tracked(IterateNothing());
  if (!self.dict()) return rt.Fail("can only get item pairs from a mapping");
  return rt.Tracked(IterateDict(self, DictPart::kItems));
}

Value MapFilter(Runtime& rt, const Value& self, const Args& args) {
  return rt.Tracked(std::make_shared<MapGenerator>(self, args));
}

template <bool kKeep, bool kByAttribute>
Value SelectFilter(Runtime& rt, const Value& self, const Args& args) {
  return rt.Tracked(std::make_shared<SelectGenerator>(self, args, kKeep, kByAttribute));
}

Value UniqueFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "unique", {"case_sensitive", "attribute"}, 0);
  if (!bound.ok()) return {};
  return rt.Tracked(
      std::make_shared<UniqueGenerator>(self, Truthy(bound[0]), AttributePath(rt, bound[1])));
}

constexpr NamedFunction kFilters[] = {
    {"items", ItemsFilter},
    {"map", MapFilter},
    {"reject", SelectFilter<false, false>},
    {"rejectattr", SelectFilter<false, true>},
    {"select", SelectFilter<true, false>},
    {"selectattr", SelectFilter<true, true>},
    {"unique", UniqueFilter},
};

}  // namespace

std::span<const NamedFunction> LazyFilters() { return kFilters; }

}  // namespace headway::jinja
