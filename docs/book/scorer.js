// Sphinx ranks pages by its own points; a chapter whose question has the words sought comes first.
const QUESTIONS = CHAPTER_QUESTIONS;
const SOUGHT = new Set(
  (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().match(/\w+/g),
);
var Scorer = {
  score: ([page, , , , points]) => {
    const question = QUESTIONS[page] ?? "";
    const found = (question.toLowerCase().match(/\w+/g) ?? []).filter((word) => SOUGHT.has(word));
    return points + 20 * found.length + (page.startsWith("notebooks/") ? 3 : 0);
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
