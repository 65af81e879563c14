#include "engine/eval/tasks/prose.h"

#include <map>
#include <string_view>

#include "base/check.h"

namespace headway::eval {
namespace {

using Words = std::vector<std::string>;

// Nothing here may look like one of the facts that retrieval hides: no numbers in digits, no keys,
// no "is stored in".
const std::map<std::string, Words, std::less<>>& Lists() {
  static const auto* const lists = new std::map<std::string, Words, std::less<>>{
      {"name",
       {"Agnes",   "Albin",  "Berta",    "Casper", "Clara",    "Conrad",  "Dorothea",   "Edmund",
        "Elsa",    "Emil",   "Fanny",    "Felix",  "Frida",    "Gerard",  "Greta",      "Hannah",
        "Hector",  "Ida",    "Ivo",      "Jasper", "Johanna",  "Julian",  "Kitty",      "Lambert",
        "Leonie",  "Lucas",  "Magnus",   "Martha", "Matilda",  "Maurice", "Nadia",      "Oscar",
        "Ottilie", "Percy",  "Philippa", "Robin",  "Rosalind", "Rupert",  "Sabina",     "Sebastian",
        "Simon",   "Stella", "Theodor",  "Ursula", "Valentin", "Walter",  "Wilhelmina", "Yvonne"}},
      {"title", {"the miller",    "the schoolmaster", "the carpenter",  "the old sailor",
                 "the innkeeper", "the doctor",       "the baker",      "the clerk",
                 "the watchman",  "the gardener",     "the postman",    "the widow next door",
                 "the ferryman",  "the blacksmith",   "the seamstress", "the young engineer",
                 "the surveyor",  "the organist",     "the chemist",    "the stationmaster",
                 "the shepherd",  "the lodger",       "the magistrate", "the printer"}},
      {"place",
       {"in the kitchen",        "on the harbour wall",     "at the edge of the wood",
        "in the reading room",   "beside the canal",        "behind the mill",
        "in the market hall",    "on the upper landing",    "under the railway arch",
        "at the crossroads",     "in the orchard",          "on the bridge",
        "in the little office",  "by the lighthouse",       "in the churchyard",
        "near the quarry",       "in the greenhouse",       "on the south terrace",
        "in the ferry house",    "at the foot of the hill", "in the workshop",
        "outside the town gate", "along the river path",    "in the waiting room",
        "on the moor",           "in the long gallery",     "at the weir",
        "in the back parlour",   "on the village green",    "in the loft above the stable"}},
      {"time",
       {"Early in the morning",
        "Towards evening",
        "A little after noon",
        "Before the lamps were lit",
        "When the rain had stopped",
        "On the following day",
        "Late that night",
        "At the end of the week",
        "Some time in October",
        "As soon as the frost was gone",
        "In the first days of spring",
        "An hour later",
        "At breakfast",
        "While the bells were ringing",
        "On the last day of the fair",
        "In the middle of the afternoon",
        "Long before sunrise",
        "After the second cup of tea",
        "During the holidays",
        "When the post had come",
        "Not many days afterwards",
        "By the time the tide turned",
        "In the quiet that followed",
        "Shortly before dinner"}},
      {"thing",
       {"ledger",  "umbrella",   "violin",       "teapot",      "letter",      "barometer",
        "trunk",   "newspaper",  "wheelbarrow",  "telescope",   "coat",        "portrait",
        "ladle",   "map",        "saddle",       "basket",      "notebook",    "hammer",
        "parcel",  "blanket",    "chair",        "inkstand",    "bicycle",     "birdcage",
        "rope",    "catalogue",  "lens",         "spade",       "cushion",     "drawing",
        "bottle",  "curtain",    "medal",        "accordion",   "ticket",      "pumpkin",
        "loaf",    "compass",    "waistcoat",    "sewing box",  "fishing rod", "music stand",
        "hat box", "dictionary", "watering can", "candlestick", "pamphlet"}},
      {"things",
       {"apples",      "letters",   "old coins",  "candles",  "chairs",    "maps",      "stories",
        "herrings",    "roses",     "rumours",    "bricks",   "questions", "clouds",    "accounts",
        "visitors",    "sparrows",  "barrels",    "promises", "blankets",  "songs",     "tools",
        "complaints",  "mushrooms", "newspapers", "pears",    "swallows",  "planks",    "debts",
        "photographs", "geese",     "lanterns",   "recipes",  "umbrellas", "timetables"}},
      {"adj",
       {"battered", "borrowed",  "careful",   "clumsy",      "costly",    "crooked", "curious",
        "dusty",    "elegant",   "empty",     "familiar",    "forgotten", "grey",    "handsome",
        "heavy",    "humble",    "ill-made",  "lopsided",    "narrow",    "neat",    "ordinary",
        "patched",  "peculiar",  "pretty",    "second-hand", "shabby",    "slender", "solid",
        "spotless", "splendid",  "stubborn",  "sturdy",      "tarnished", "ugly",    "unfinished",
        "roomy",    "varnished", "well-worn", "wooden",      "yellow"}},
      {"mood",
       {"anxious",    "cheerful",  "cross",         "delighted",   "doubtful",  "drowsy",
        "grateful",   "hopeful",   "impatient",     "indifferent", "lonely",    "merry",
        "nervous",    "obstinate", "out of breath", "polite",      "proud",     "puzzled",
        "relieved",   "restless",  "serious",       "sleepy",      "surprised", "suspicious",
        "thoughtful", "tired",     "uneasy",        "vexed"}},
      {"did",
       {"carried",   "cleaned", "counted",    "described", "examined",  "fetched",  "found",
        "inherited", "lent",    "lost",       "mended",    "misplaced", "noticed",  "painted",
        "polished",  "praised", "remembered", "repaired",  "returned",  "sketched", "sold",
        "unpacked",  "weighed", "wrapped",    "borrowed",  "dropped",   "admired",  "bought"}},
      {"went",
       {"hurried off", "walked home", "went down to the water", "climbed the stairs", "turned back",
        "set out for the station", "crossed the yard", "wandered away", "sat down again",
        "took the narrow road", "went in by the side door", "leaned over the railing",
        "stayed where they were", "followed the carriage tracks", "went out to look",
        "rowed to the other bank", "waited for the coach", "lay down to rest"}},
      {"how",
       {"without a word",
        "with great care",
        "in spite of the cold",
        "in a low voice",
        "rather slowly",
        "for the third time",
        "as if nothing had happened",
        "with a short laugh",
        "against all advice",
        "to everybody's surprise",
        "out of mere habit",
        "with some reluctance",
        "in the best of spirits",
        "before anyone could object",
        "more than once",
        "under the eyes of the whole company",
        "with both hands",
        "as quietly as possible",
        "for no clear reason",
        "because it was expected"}},
      {"weather",
       {"The wind had turned to the north", "A thin fog lay over the fields",
        "The sun came out at last", "It had rained since the day before",
        "Snow was falling on the roofs", "The air smelled of hay",
        "Heavy clouds were moving in from the sea", "The heat had not yet broken",
        "A cold light filled the street", "The sky was clear and full of swallows",
        "Thunder could be heard beyond the hills", "The first leaves were coming down",
        "The ice on the pond had begun to crack", "Dust blew along the road"}},
      {"matter",
       {"the price of coal",
        "the new railway",
        "the state of the roof",
        "an uncle in the colonies",
        "the election",
        "the missing spoon",
        "the harvest",
        "a quarrel about a hedge",
        "the choir",
        "the health of the pony",
        "a lecture on bees",
        "the voyage",
        "the rent",
        "the broken clock",
        "a marriage that never took place",
        "the flood of the previous year",
        "the proper way to bake bread",
        "a debt of long standing",
        "the examination",
        "the museum",
        "the drains",
        "the inheritance",
        "the regatta",
        "a lost dog"}},
      {"opinion",
       {"nothing good would come of it", "the matter could wait until Monday",
        "it had all been arranged beforehand", "somebody ought to write to the council",
        "such things were better done at home", "the young people were to blame",
        "a little patience would do no harm", "the accounts had never been right",
        "it was cheaper to buy a new one", "they had taken the wrong turning",
        "the whole town knew about it already", "the answer lay in the old papers",
        "there was still time to catch the boat", "nobody had asked for advice",
        "the roof would not last another winter", "it was the finest they had ever seen"}},
      {"number",
       {"two", "three", "four", "five", "six", "seven", "nine", "a dozen", "twenty", "about thirty",
        "more than forty", "nearly a hundred"}},
      {"animal",
       {"a brown dog", "the cat", "a pair of crows", "an old mare", "the neighbour's goat",
        "a flock of starlings", "a hedgehog", "the tame jackdaw", "a swarm of bees",
        "a lean grey donkey", "three ducks", "a frightened hare", "an owl", "the piglets"}},
      {"food",
       {"onion soup", "cold mutton", "plum cake", "boiled potatoes", "bread and honey",
        "a dish of beans", "smoked eel", "an omelette", "gooseberry tart", "barley broth",
        "roast chestnuts", "pickled cabbage", "a jug of cider", "oatmeal", "pear jam"}},
  };
  return *lists;
}

const Words& Patterns() {
  static const auto* const patterns = new Words{
      "{time} {person} {did} the {adj} {thing} {place}.",
      "{person} {did} the {thing}, {did} it again {how}, and {went}.",
      "{weather}, and {person} {went}.",
      "{other} said that {opinion}.",
      "\"I never {did} a {adj} {thing} in my life,\" said {other}, \"and I do not mean to begin.\"",
      "They talked about {matter} and about {matter}, and {person} grew {mood}.",
      "There were {number} {things} {here}, and not one of them was {adj}.",
      "{person} was {mood}, for {title} had {did} the {thing} {how}.",
      "The {thing} was {adj}, the {thing} was {adj}, and {other} {did} both of them {how}.",
      "{time} {animal} came into sight {here}, and {person} {went}.",
      "For supper there was {food}, which {title} ate {how}.",
      "\"Have you forgotten {matter}?\" asked {person}.",
      "Nobody could say who had {did} the {adj} {thing}.",
      "{other} thought {opinion}, but {person} was too {mood} to answer.",
      "{title2} kept {number} {things} in a {adj} {thing} and {did} them every Sunday.",
      "If {matter} had been settled, {person} would have {did} the {thing} {how}.",
      "{weather}; {time2} {title} {went}, and {animal} {went}.",
      "{person} had {did} {number} {things} since the morning, and felt {mood}.",
      "It was {other} who {did} the {thing} {place2} and {went} {how}.",
      "Of all the {things} that {person} had ever {did}, these were the most {adj}.",
      "\"It is only a {thing},\" {other} answered, \"and a {adj} one.\"",
      "{time} they ate {food} and {food} {here}, and spoke of {matter}.",
      "No {thing} was ever so {adj} as the one that {title} {did} {place2}.",
      "{person} and {other} {went} {how}, each of them {mood}.",
      "Everyone agreed that {opinion}, except {title}, who {went}.",
      "A {adj} {thing} and {number} {things} were all that {other} had {did}.",
      "{title2} wrote a long letter about {matter}, {did} it, and sent it {how}.",
      "When {person} asked about {matter}, {title} became {mood} and {did} the {thing}.",
  };
  return *patterns;
}

std::string Capitalised(std::string text) {
  const size_t first = text.starts_with('"') ? 1 : 0;
  if (text.size() > first && text[first] >= 'a' && text[first] <= 'z') {
    text[first] = static_cast<char>(text[first] - 'a' + 'A');
  }
  return text;
}

std::string Uncapitalised(std::string text) {
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  return text;
}

}  // namespace

std::string ProseGenerator::Word(const std::string& list) {
  if (list == "person") return person_;
  if (list == "other") return other_;
  if (list == "here") return place_;
  if (list == "place2") return Word("place");
  if (list == "title2") return Word("title");
  if (list == "time2") return Uncapitalised(Word("time"));
  const auto found = Lists().find(list);
  HEADWAY_CHECK(found != Lists().end());
  const Words& words = found->second;
  return words[static_cast<size_t>(random_.Below(static_cast<int64_t>(words.size())))];
}

std::string ProseGenerator::Fill(const std::string& pattern) {
  std::string text;
  for (size_t at = 0; at < pattern.size();) {
    if (pattern[at] != '{') {
      text += pattern[at++];
      continue;
    }
    const size_t end = pattern.find('}', at);
    HEADWAY_CHECK(end != std::string::npos);
    const std::string word = Word(pattern.substr(at + 1, end - at - 1));
    const bool vowel = std::string_view("aeiou").find(word[0]) != std::string_view::npos;
    if (vowel && (text == "A " || text.ends_with(" a "))) {
      text.back() = 'n';
      text += ' ';
    }
    text += word;
    at = end + 1;
  }
  return Capitalised(text);
}

std::vector<std::string> ProseGenerator::Paragraph() {
  person_ = Word("name");
  other_ = random_.Below(2) == 0 ? Word("name") : Word("title");
  if (other_ == person_) other_ = Word("title");
  place_ = Word("place");
  const int64_t count = 4 + random_.Below(6);
  std::vector<std::string> sentences;
  int64_t last = -1;
  while (static_cast<int64_t>(sentences.size()) < count) {
    const int64_t pattern = random_.Below(static_cast<int64_t>(Patterns().size()));
    if (pattern == last) continue;
    last = pattern;
    sentences.push_back(Fill(Patterns()[static_cast<size_t>(pattern)]));
  }
  return sentences;
}

}  // namespace headway::eval
