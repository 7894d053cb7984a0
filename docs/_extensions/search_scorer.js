// How the search of the site orders what it finds: the history comes last. The other weights are those
// of Sphinx 9.0, which has none where a page has a Scorer: compare them after an upgrade.
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
