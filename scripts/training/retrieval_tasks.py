"""Synthetic documents that teach retrieval: facts hidden in prose, then turns that ask for them.

A document is a list of token ids and a list of loss weights: 1 for prose, little for questions, much for answers. The
kinds are those of the model card: needle (one number or several a key), passkey, place, variables, passage.
"""
WEIGHT_PROSE, WEIGHT_QUESTION, WEIGHT_ANSWER = 1.0, 0.3, 6.0
ADJECTIVES = """amber brave calm dark eager faint gentle hollow icy jolly keen lively misty noble old pale quiet rapid
    silver tall upper vivid warm young zesty bright cold deep fair green high kind long mild near open plain red soft
    thin vast white bitter early golden heavy humble lonely narrow proud royal sharp silent simple steady strange sweet
    tender wild""".split()
NOUNS = """river garden castle mirror engine forest harbor island jacket kettle ladder market needle ocean pencil quarry
    rabbit shadow temple uncle valley window yard anchor bridge candle dragon eagle falcon gate hammer iron jewel key
    lantern mountain nest orchard path queen road stone tower umbrella vessel wagon well wheel bell book boat clock
    cloud crown door field flame horse lamp moon ring ship star tree wolf""".split()
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
VARIABLES = [a + b for a in LETTERS for b in LETTERS]
KINDS = ["needle", "needle", "needles", "passkey", "place", "variables", "passage"]


def digits(rng, count):
    return "".join(rng.choice("0123456789") for _ in range(count))


def needles(rng, several):
    """One number a key, or up to three."""
    facts, turns = [], []
    keys = {f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}" for _ in range(rng.randint(1, 12))}
    for key in sorted(keys):
        numbers = [digits(rng, 7) for _ in range(rng.randint(1, 3) if several else 1)]
        facts += [f" One of the special magic numbers for {key} is: {number}." for number in numbers]
        one = len(numbers) == 1
        subject = f"special magic number{'' if one else 's'} for {key} mentioned in the text"
        turns.append((f"What {'is' if one else 'are all'} the {subject}?",
                      f"The {subject} {'is' if one else 'are'} {', '.join(numbers)}."))
    return facts, turns


def passkey(rng):
    key = digits(rng, 5)
    return [f" The pass key is {key}. Remember it. {key} is the pass key."], [
        ("What is the pass key?", f"The pass key is {key}.")]


def places(rng):
    things = sorted({f"{rng.choice(NOUNS)}-{digits(rng, 3)}" for _ in range(rng.randint(4, 40))})
    where = {thing: f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}" for thing in things}
    return [f"\nThe {thing} is stored in the {place}.\n" for thing, place in where.items()], [
        (f"Where is the {thing} stored?", f"The {thing} is stored in the {place}.") for thing, place in where.items()]


def variables(rng):
    """Chains of assignments, which stay in order."""
    facts, turns = [], []
    for _ in range(rng.randint(1, 3)):
        names, value = rng.sample(VARIABLES, rng.randint(2, 5)), digits(rng, 5)
        facts.append(f"\nVAR {names[0]} = {value}\n")
        facts += [f"\nVAR {name} = VAR {before}\n" for before, name in zip(names, names[1:])]
        turns.append((f"Find all variables that are assigned the value {value} in the text.",
                      f"The variables assigned the value {value} are: {', '.join(names)}."))
    return facts, turns


class TaskMaker:
    """Makes documents from a tokenizer and a stream of prose (token ids)."""

    def __init__(self, tokenizer, prose):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.prose = prose
        begin, start, end, self.end_of_turn = map(tokenizer.token_to_id, (
            "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
        self.first_special = begin
        self.begin = [begin]
        self.user = [start, *self.encode("user"), end, *self.encode("\n\n")]
        self.assistant = [start, *self.encode("assistant"), end, *self.encode("\n\n")]

    def turn(self, first, question, answer):
        """(question ids, answer ids); the first question goes on in the turn of the document."""
        asked = self.encode("\n\n" + question) if first else self.user + self.encode(question)
        return asked + [self.end_of_turn] + self.assistant, self.encode(answer) + [self.end_of_turn]

    def passages(self, rng, prose):
        turns = []
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(max(1, len(prose) - 48))
            head, rest = prose[at:at + 8], prose[at + 8:at + 8 + rng.randint(8, 32)]
            lead = ("\n\n" if not turns else "") + "Continue the passage of the text that reads:"
            asked = ([] if not turns else self.user) + self.encode(lead) + head
            turns.append((asked + [self.end_of_turn] + self.assistant, rest + [self.end_of_turn]))
        return turns

    def prose_of(self, rng, length):
        start = rng.randrange(len(self.prose) - length - 1)
        return [int(token) for token in self.prose[start:start + length] if token < self.first_special]

    def document(self, rng, length):
        """One document of at most `length` + 1 tokens: (ids, weights)."""
        kind = rng.choice(KINDS)
        facts, asked = {"needle": lambda: needles(rng, False), "needles": lambda: needles(rng, True),
                        "passkey": lambda: passkey(rng), "place": lambda: places(rng),
                        "variables": lambda: variables(rng), "passage": lambda: ([], [])}[kind]()
        facts = [self.encode(fact) for fact in facts]
        if kind != "variables":
            rng.shuffle(facts)
            rng.shuffle(asked)
        turns, budget = [], min(length // 3, 1200)
        for question, answer in asked:
            turn = self.turn(not turns, question, answer)
            budget -= len(turn[0]) + len(turn[1])
            if budget < 0:
                break
            turns.append(turn)
        taken = sum(map(len, facts)) + (sum(len(q) + len(a) for q, a in turns) or 200)
        room = max(32, length - len(self.user) - taken - 2)
        prose = self.prose_of(rng, room if rng.random() < 0.6 else rng.randint(32, room))
        if kind == "passage":
            turns = self.passages(rng, prose)
        ids, last = self.begin + self.user, 0
        for position, fact in zip(sorted(rng.randrange(len(prose) + 1) for _ in facts), facts):
            ids += prose[last:position] + fact
            last = position
        ids += prose[last:]
        weights = [WEIGHT_PROSE] * len(ids)
        for question, answer in turns:
            ids += question + answer
            weights += [WEIGHT_QUESTION] * len(question) + [WEIGHT_ANSWER] * len(answer)
        return ids[:length + 1], weights[:length + 1]
