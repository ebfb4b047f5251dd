// SPDX-License-Identifier: Apache-2.0
// Draws a chart as wide as its place. Texts are data: Vega sets them as text.
"use strict";

function drawn(place, spec) {
  const narrow = place.clientWidth < 700;
  if (spec.vconcat) {
    const names = narrow ? 120 : 190; // pixels for names of layers, at which all plots begin
    if (narrow) {
      spec.config.axis.labelLimit = 80;
      spec.config.legend.columns = 2;
    }
    for (const row of spec.vconcat) {
      if (row.concat) row.columns = narrow ? 1 : row.columns;
      const columns = row.concat ? row.columns : 1;
      const room = place.clientWidth - names - 90 * (columns - 1) - 20;
      for (const part of row.concat || [row]) part.width = Math.max(room / columns, 120);
    }
  }
  return vegaEmbed(place, spec, { ast: true, actions: false, renderer: "svg", tooltip: { theme: "custom" } });
}
