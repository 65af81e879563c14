"""Chat templates in the manner of published families, and conversations, for make_template_golden.py.

The wording and the marks are made up; the constructs are those that published templates use.
"""

PLAIN = r"""{{ bos_token }}{% for message in messages %}{{ '<|head|>' + message['role'] + '<|/head|>

' + message['content'] | trim + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>

' }}{% endif %}"""

CHATML = r"""{%- for message in messages %}
    {{- '<|start|>' ~ message.role ~ '\n' ~ message.content ~ '<|stop|>' ~ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\n' }}
{%- endif %}
"""

# A system message joins the first user message; roles must alternate.
ALTERNATING = r"""{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles have to alternate: user, assistant, user, ...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<SYS>\n' + system_message + '\n</SYS>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[Q] ' + content.strip() + ' [/Q]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

# Tools, a date, built-in tools, one tool call a message.
DATED_TOOLS = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_first is defined %}
    {%- set tools_first = true %}
{%- endif %}
{%- if not today is defined %}
    {%- if strftime_now is defined %}
        {%- set today = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set today = "1 Jan 2000" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message, when there is one, goes into the first block. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|h|>system<|/h|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Place: shell\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Helpers: " + builtin_tools | reject('equalto', 'interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Today: " + today + "\n\n" }}
{%- if tools is not none and not tools_first %}
    {{- "These functions may be called, as {\"fn\": name, \"args\": {...}}.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|e|>" }}

{%- if tools_first and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Tools need a first user message to stand in!") }}
{%- endif %}
    {{- '<|h|>user<|/h|>\n\n' -}}
    {{- "Call one of these when it helps.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|e|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'shell' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|/h|>\n\n'+ message['content'] | trim + '<|e|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One tool call at a time!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|h|>assistant<|/h|>\n\n' -}}
            {{- "<|py|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|h|>assistant<|/h|>\n\n' -}}
            {{- '{"fn": "' + tool_call.name + '", ' }}
            {{- '"args": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- "<|e|>" }}
    {%- elif message.role == "tool" or message.role == "shell" %}
        {{- "<|h|>shell<|/h|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|e|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant<|/h|>\n\n' }}
{%- endif %}
"""

# Tools before the last user message, call ids of nine characters, strict order of roles.
BRACKETED_TOOLS = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Only user and assistant messages count for the order. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After an optional system message, user and assistant take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[Q] " + system_message + "\n\n" + message["content"] + "[/Q]" }}
        {%- else %}
            {{- "[Q] " + message["content"] + "[/Q]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Ids of tool calls have nine characters!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- else %}
        {{- raise_exception("Unknown role: " + message["role"]) }}
    {%- endif %}
{%- endfor %}
"""

# Tools as lines of JSON, tool results grouped into one user turn.
GROUPED_TOOLS = r"""{%- if tools %}
    {{- '<|start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You answer briefly.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nSignatures are in <tools></tools>:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nCall with {\"name\": <name>, \"arguments\": <object>} within <call></call>.<|stop|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|start|>system\n' + messages[0]['content'] + '<|stop|>\n' }}
    {%- else %}
        {{- '<|start|>system\nYou answer briefly.<|stop|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|start|>' + message.role + '\n' + message.content + '<|stop|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</call>' }}
        {%- endfor %}
        {{- '<|stop|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|start|>user' }}
        {%- endif %}
        {{- '\n<result>\n' }}
        {{- message.content }}
        {{- '\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|stop|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\n' }}
{%- endif %}
"""

# Reasoning before the last real question is dropped.
THINKING = r"""{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|start|>' + message.role + '\n' + content + '<|stop|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|stop|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|start|>user\n<result>\n' + content + '\n</result><|stop|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

# No system role; the assistant is called model; lists of parts as content.
TURNS = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles take turns: user, then assistant") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content") }}
    {%- endif -%}
    {{ '</turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
"""

# Whole-line blocks that trim_blocks and lstrip_blocks clean up.
LINES = r"""{% for message in messages %}
{% if message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{% generation %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endgeneration %}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

# One long line of state kept in a namespace.
STATEFUL = r"""{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|U|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<|A|><|calls|><|call|>' + tool['type'] + '<|sep|>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments']|tojson + '\n' + '```' + '<|/call|>'}}{%- set ns.is_first = true -%}{%- else %}{{'\n' + '<|call|>' + tool['type'] + '<|sep|>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments']|tojson + '\n' + '```' + '<|/call|>'}}{{'<|/calls|><|eos|>'}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'<|/outputs|>' + message['content'] + '<|eos|>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|A|>' + content + '<|eos|>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|outputs|><|output|>' + message['content'] + '<|/output|>'}}{%- set ns.is_output_first = false %}{%- else %}{{'\n<|output|>' + message['content'] + '<|/output|>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|/outputs|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|A|><think>\n'}}{% endif %}"""

# Macros that describe JSON schemas as types, recursively.
TYPED_TOOLS = r"""{%- macro type_of(spec) %}
    {%- set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
    {%- if names[spec.type] is defined %}
        {{- names[spec.type] }}
    {%- elif spec.type == "array" %}
        {{- "list[" + type_of(spec["items"]) + "]" }}
    {%- elif spec.type == "object" %}
        {%- if spec.additionalProperties is defined %}
            {{- "dict[str, " + type_of(spec.additionalProperties) + "]" }}
        {%- else %}
            {{- "dict" }}
        {%- endif %}
    {%- elif spec.type is iterable and spec.type is not string %}
        {{- "Union[" }}
        {%- for t in spec.type %}
            {{- type_of({"type": t}) }}
            {%- if not loop.last %}
                {{- "," }}
            {%- endif %}
        {%- endfor %}
        {{- "]" }}
    {%- else %}
        {{- "Any" }}
    {%- endif %}
{%- endmacro %}

{%- macro arguments(parameters, indent=2) %}
    {%- for name, spec in parameters.properties|items %}
        {{- ' ' * indent }}{{ name }}: {{ type_of(spec) }}
        {%- if name in (parameters.required or []) %} (required){% endif %}
        {%- if spec.description %} - {{ spec.description|trim }}{% endif %}
        {%- if spec.enum %} one of {{ spec.enum|map('tojson')|join('|') }}{% endif %}
        {{- "\n" }}
    {%- endfor %}
{%- endmacro %}

{{- bos_token }}
{%- if tools %}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{% set tool = tool.function %}{% endif %}
        {{- "def " + tool.name + "(" }}
        {%- for name, spec in tool.parameters.properties|items %}
            {{- name + ": " + type_of(spec) }}
            {%- if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- ")" }}
        {%- if tool.return is defined %}
            {{- " -> " + type_of(tool.return) }}
        {%- endif %}
        {{- "\n" + tool.description|indent(2, true) + "\n" }}
        {{- arguments(tool.parameters, indent=4) }}
    {%- endfor %}
    {{- tools|map(attribute='function')|map(attribute='name')|sort|join(', ') ~ '\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set role = message.role|title %}
    {{- "## " ~ role ~ "\n" ~ (message.content|default('', true)) ~ "\n" }}
    {%- for call in message.tool_calls or [] %}
        {{- "-> " ~ call.function.name ~ "(" }}
        {%- for k, v in call.function.arguments|dictsort %}{{ k }}={{ v|tojson }}{{ ", " if not loop.last }}{% endfor %}
        {{- ")\n" }}
    {%- endfor %}
{%- endfor %}
{{- "## Assistant\n" if add_generation_prompt }}"""

# Documents, call blocks, filters, and sorted JSON.
GROUNDED = r"""{%- macro section(title, level=2) %}
{{ '#' * level }} {{ title|upper }}
{{ caller() }}
{% endmacro -%}
{%- call section('preamble') %}{{ (messages|selectattr('role', 'eq', 'system')|map(attribute='content')|first)|default('none given') }}{% endcall %}
{%- if documents %}
{%- call section('sources', level=3) %}
{%- for doc in documents %}
[{{ loop.index }}] {{ doc.title }}: {{ doc.text|replace('\n', ' ')|truncate(30) }}
{% endfor %}
{%- endcall %}
{%- endif %}
{%- filter trim %}
  {% for message in messages if message.role != 'system' %}
    {% if loop.changed(message.role) %}<{{ message.role }}>{% endif %}

    {%- set parts = [] if message.content is none else (message.content if message.content is string else message.content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join(' ')) %}
    {{- parts }}
  {% endfor %}
{% endfilter %}
{{ tools|default([], true)|tojson(sort_keys=true, separators=(',', ':')) }}
{%- if add_generation_prompt %}<assistant>{% endif %}"""

TOOL_WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City, \"country\""},
        "days": {"type": "integer"},
        "units": {"type": "string", "enum": ["metric", "imperial"]}}, "required": ["place"]},
    "return": {"type": "object", "additionalProperties": {"type": "number"}}}}
TOOL_SUM = {"type": "function", "function": {
    "name": "add", "description": "Adds numbers.\nAll of them.",
    "parameters": {"type": "object", "properties": {
        "values": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "mode": {"type": ["string", "boolean"]}, "extra": {"type": "object"},
        "odd": {"description": "nothing known"}}, "required": []}}}

SYSTEM = {"role": "system", "content": "  Be kind to <everyone> & brief.  "}
ASK = {"role": "user", "content": " How warm is Zürich? 🌡 "}
ANSWER = {"role": "assistant", "content": "<think>\nLook it up.\n</think>\n\n 21 °C.\n"}
AGAIN = {"role": "user", "content": "And \"tomorrow\"?\nPlease."}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdefghi", "type": "function",
     "function": {"name": "get_weather", "arguments": {"place": "Zürich", "units": "metric"}}}]}
CALLS = {"role": "assistant", "content": "Two:", "tool_calls": CALL["tool_calls"] + [
    {"id": "jklmnopqr", "type": "function",
     "function": {"name": "add", "arguments": {"values": [[1, 2.5]], "mode": True}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi",
          "content": "{\"celsius\": 21.5}"}
RESULT2 = {"role": "tool", "name": "add", "tool_call_id": "jklmnopqr", "content": "3.5"}
PARTS = {"role": "user", "content": [{"type": "text", "text": " What is "}, {"type": "image"},
                                     {"type": "text", "text": "this? "}]}
REASONED = {"role": "assistant", "content": "Yes.", "reasoning_content": "\nAll good.\n"}

CONVERSATIONS = [
    [ASK],
    [SYSTEM, ASK],
    [SYSTEM, ASK, ANSWER, AGAIN],
    [ASK, ANSWER, AGAIN, REASONED],
    [SYSTEM, ASK, CALL, RESULT, ANSWER, AGAIN],
    [ASK, CALLS, RESULT, RESULT2, ANSWER, AGAIN],
    [ASK, CALL, RESULT],
    [SYSTEM, PARTS, ANSWER],
    [ASK, AGAIN],
    [ANSWER],
    [],
]

FAMILIES = [PLAIN, CHATML, ALTERNATING, DATED_TOOLS, BRACKETED_TOOLS, GROUPED_TOOLS, THINKING, TURNS,
            LINES, STATEFUL, TYPED_TOOLS, GROUNDED]


def cases():
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    result = []
    for family in FAMILIES:
        for number, conversation in enumerate(CONVERSATIONS):
            context = {**tokens, "messages": conversation, "add_generation_prompt": number % 2 == 0}
            result.append((family, context))
            if number in (1, 4, 5):
                result.append((family, {**context, "tools": [TOOL_WEATHER, TOOL_SUM]}))
    extra = {**tokens, "messages": CONVERSATIONS[1], "add_generation_prompt": True}
    result += [
        (DATED_TOOLS, {**extra, "tools": [TOOL_SUM], "tools_first": False, "today": "1 May 2020"}),
        (DATED_TOOLS, {**extra, "builtin_tools": ["interpreter", "search"]}),
        (DATED_TOOLS, {**extra, "builtin_tools": ["get_weather"], "messages": CONVERSATIONS[4]}),
        (THINKING, {**extra, "enable_thinking": False}),
        (THINKING, {**extra, "enable_thinking": True}),
        (GROUNDED, {**extra, "documents": [{"title": "Zürich", "text": "A city\nin the north."},
                                           {"title": "Long", "text": "word " * 20}]}),
    ]
    return result
