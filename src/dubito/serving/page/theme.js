"use strict";
// Before anything is painted, so that a page in the chosen theme does not flash in the other.
try { const theme = localStorage.getItem("dubito-theme"); if (theme) document.documentElement.dataset.theme = theme } catch {}
