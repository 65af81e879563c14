// Lossless pages where nobody asks for an encoding.
#ifndef HEADWAY_ENGINE_ENCODING_CHOICE_H_
#define HEADWAY_ENGINE_ENCODING_CHOICE_H_

#include <functional>

#include "engine/blueprint.h"
#include "headway/status.h"

namespace headway {

// What make(inputs) gives; and where the settings leave the encoding to the plan, and memory of a
// device is short, with lossless pages, if these are predicted to be clearly faster, or plain ones
// do not fit. Only where they change no bit: in pages of as many tokens, and with a way back to
// plain ones (Engine::Impl::MayGoOnPlain).
Result<Blueprint> ChooseEncoding(
    const BlueprintInputs& inputs,
    const std::function<Result<Blueprint>(const BlueprintInputs& inputs)>& make);

}  // namespace headway

#endif  // HEADWAY_ENGINE_ENCODING_CHOICE_H_
