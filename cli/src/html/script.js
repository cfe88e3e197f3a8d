'use strict';
/* Shows what is under the pointer or the finger: marks carry their text, heat maps a list of their
   cells' values. In a figure that has the keyboard's focus, the arrow keys go from value to value. */
(function () {
  var tip = document.createElement('div');
  tip.id = 'tip';
  tip.setAttribute('role', 'status');
  document.querySelector('main').appendChild(tip);
  function cell(map, column, row) {
    var data = map.dataset;
    if (!map.values) map.values = data.cells.split(';');
    return data.name + ' ' + (map.values[row * data.columns + column] || '0');
  }
  function under(map, event) {
    var box = map.getBoundingClientRect(), data = map.dataset;
    return cell(map, Math.floor((event.clientX - box.left) / box.width * data.columns),
      Math.floor((box.bottom - event.clientY) / box.height * data.rows));
  }
  function show(text, left, top) {
    tip.style.display = 'block';
    tip.textContent = text;
    var x = Math.min(left + 14, window.innerWidth - tip.offsetWidth - 8);
    var y = top + 18;
    if (y + tip.offsetHeight > window.innerHeight) y = top - tip.offsetHeight - 10;
    tip.style.left = x + 'px';
    tip.style.top = y + 'px';
  }
  function hide() { tip.style.display = 'none'; }
  function point(event) {
    var at = event.target.closest ? event.target.closest('[data-tip],[data-cells]') : null;
    if (!at) return hide();
    show(at.dataset.cells === undefined ? at.dataset.tip : under(at, event), event.clientX, event.clientY);
  }
  document.addEventListener('mousemove', point);
  document.addEventListener('pointerdown', point);
  document.addEventListener('focusout', hide);
  document.addEventListener('keydown', function (event) {
    var plot = event.target, step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === 'Escape') hide();
    if (!step || !plot.classList.contains('plot')) return;
    var marks = plot.querySelectorAll('[data-tip],[data-cells]');
    var map = marks.length && marks[0].dataset.cells !== undefined ? marks[0] : null;
    var count = map ? map.dataset.columns * map.dataset.rows : marks.length;
    if (!count) return;
    event.preventDefault();
    plot.at = plot.at === undefined ? (step > 0 ? 0 : count - 1) : (plot.at + step + count) % count;
    var mark = map || marks[plot.at], box = mark.getBoundingClientRect(), here = plot.getBoundingClientRect();
    var column = map ? plot.at % map.dataset.columns : 0, row = map ? Math.floor(plot.at / map.dataset.columns) : 0;
    var across = map ? (column + 0.5) / map.dataset.columns : 0.5, down = map ? 1 - (row + 0.5) / map.dataset.rows : 0.5;
    var before = plot.scrollLeft;
    plot.scrollLeft += box.left + box.width * across - here.left - here.width / 2;
    show(map ? cell(map, column, row) : mark.dataset.tip,
      box.left + box.width * across - (plot.scrollLeft - before), box.top + box.height * down);
  });
}());
