// How the search of the site orders what it finds: Sphinx's own weights, and the history last.
const HISTORY = /^(changelog|decisions\/|performance\/log\/)/;
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => (HISTORY.test(page) ? score / 100 : score),
};
