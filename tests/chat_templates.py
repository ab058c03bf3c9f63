"""Short forms of the chat templates in use, one of each family, with the control tokens of their models."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A template and what its model's file says beside it."""

    source: str | None  # None for a model without one
    control_spellings: tuple[str, ...]
    bos_token: str | None
    eos_token: str | None
    turn_ends: frozenset[str]  # what stands between a reply and the next user message


# As in SmolLM2: a default system message, and no trimming.
CHATML = Family(
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"),
    "<|im_start|>",
    "<|im_end|>",
    frozenset({"<|im_start|>", "<|im_end|>"}),
)

LLAMA3 = Family(
    """{%- for message in messages %}
    {%- set header = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}
    {%- set content = header + message['content'] | trim %}
    {%- if loop.first %}
        {%- set content = bos_token + content %}
    {%- endif %}
    {{- content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
""",
    ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|begin_of_text|>",
    "<|eot_id|>",
    frozenset({"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"}),
)

# Folds the system message itself, and refuses roles that do not alternate.
LLAMA2 = Family(
    """{%- if messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set content = system + message['content'] if loop.first else message['content'] %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    ("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
    "<s>",
    "</s>",
    frozenset({"</s>", "<s>", "[INST]"}),
)

GEMMA = Family(
    """{{ bos_token }}{% for message in messages %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
    ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", *(f"<unused{n}>" for n in range(99))),
    "<bos>",
    "<eos>",
    frozenset({"<start_of_turn>", "<end_of_turn>"}),
)

# Its role tokens are put together from the role's name.
ZEPHYR = Family(
    """{% for message in messages %}
{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"),
    "<s>",
    "</s>",
    frozenset({"</s>", "<|user|>"}),
)

# Takes the thinking out of replies, and opens every reply with a thought.
QWEN3 = Family(
    """{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}
""",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"),
    None,
    "<|im_end|>",
    frozenset({"<|im_start|>", "<|im_end|>"}),
)

FAMILIES = {
    "chatml": CHATML, "llama3": LLAMA3, "llama2": LLAMA2, "gemma": GEMMA, "zephyr": ZEPHYR, "qwen3": QWEN3,
}  # fmt: skip
