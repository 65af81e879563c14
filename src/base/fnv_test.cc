#include "base/fnv.h"

#include <gtest/gtest.h>

namespace headway {
namespace {

// Of draft-eastlake-fnv, appendix C.
TEST(FnvTest, HashesAreThoseOfItsAuthors) {
  EXPECT_EQ(Fnv1a(""), 0xCBF29CE484222325u);
  EXPECT_EQ(Fnv1a("a"), 0xAF63DC4C8601EC8Cu);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171F73967E8u);
}

TEST(FnvTest, AHashGoesOnBehindAnother) { EXPECT_EQ(Fnv1a("bar", Fnv1a("foo")), Fnv1a("foobar")); }

}  // namespace
}  // namespace headway
