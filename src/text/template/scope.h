// Resolves the names of a template to variables, as jinja2's compiler does: which scope a name
// belongs to is decided from the whole template before it runs, so that a loop reads a variable
// that is set further down as undefined even when the context has one of that name.
#ifndef HEADWAY_TEXT_TEMPLATE_SCOPE_H_
#define HEADWAY_TEXT_TEMPLATE_SCOPE_H_

#include "headway/status.h"
#include "text/template/ast.h"

namespace headway::jinja {

// Fills the refs, slots and scope entries of the tree, and finds its filters and tests.
// kUnsupported names a filter or test that is not there, where jinja2 would refuse it too before
// running; within conditions the statement that uses it fails.
Status ResolveNames(Template* parsed);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_SCOPE_H_
