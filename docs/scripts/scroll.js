// Code, tables and figures that are wider than the page can be scrolled with the keyboard too.
addEventListener("load", () => {
  const wide = "pre > code, .md-typeset__scrollwrap, p:has(.wide)";
  for (const one of document.querySelectorAll(wide)) one.tabIndex = 0;
});
