'use strict';

/* Values on the axes of the small graphs, which asv draws without any: a plugin of flot. */
$.plot.plugins.push({
    init: function(plot) {
        plot.hooks.processOptions.push(function(plot, options) {
            var placeholder = plot.getPlaceholder();
            if (!placeholder.hasClass('benchmark-plot')) {
                return;
            }
            var name = placeholder.attr('id').replace('summarygrid-', '');
            var unit = $.asv.main_json.benchmarks[name].unit;
            var dates = $.asv.main_json.revision_to_date;
            options.yaxes[0].ticks = 3;
            options.yaxes[0].tickFormatter = function(value, axis) {
                var known = value !== 0 && (unit === 'seconds' || unit === 'bytes');
                var text = known ? $.asv.pretty_unit(value, unit) : value.toFixed(axis.tickDecimals);
                return text.replace(/\.0+(?=\D|$)/, '').replace(/(\.\d*[1-9])0+(?=\D|$)/, '$1');
            };
            options.grid.labelMargin = 4;
            // The days of the first and the last commit.
            options.xaxes[0].ticks = function(axis) {
                return [axis.datamin, axis.datamax].map(function(revision) {
                    return [revision, new Date(dates[revision]).toISOString().slice(0, 10)];
                });
            };
        });
    },
    name: 'axis_values',
    version: '1.0'
});
