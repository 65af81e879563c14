// Parses a template into its tree, names not yet resolved.
#ifndef HEADWAY_TEXT_TEMPLATE_PARSER_H_
#define HEADWAY_TEXT_TEMPLATE_PARSER_H_

#include <memory>
#include <string>
#include <string_view>

#include "headway/status.h"
#include "text/template/ast.h"

namespace headway::jinja {

// `source` is valid UTF-8. kInvalidArgument for what jinja2 refuses too, kUnsupported for what only
// Headway lacks; messages name the template and the line.
Result<std::unique_ptr<Template>> ParseTemplate(std::string_view source, const std::string& name);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_PARSER_H_
