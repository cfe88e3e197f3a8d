'use strict';
/* Shows what is under the pointer: marks carry their text, heat maps a list of their cells' values. */
(function () {
  var tip = document.createElement('div');
  tip.id = 'tip';
  document.body.appendChild(tip);
  function cell(map, event) {
    var box = map.getBoundingClientRect(), data = map.dataset;
    if (!map.values) map.values = data.cells.split(';');
    var column = Math.floor((event.clientX - box.left) / box.width * data.columns);
    var row = Math.floor((box.bottom - event.clientY) / box.height * data.rows);
    return data.name + ' ' + (map.values[row * data.columns + column] || '0');
  }
  document.addEventListener('mousemove', function (event) {
    var at = event.target.closest ? event.target.closest('[data-tip],[data-cells]') : null;
    tip.style.display = at ? 'block' : 'none';
    if (!at) return;
    tip.textContent = at.dataset.cells === undefined ? at.dataset.tip : cell(at, event);
    var x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    var y = event.clientY + 18;
    if (y + tip.offsetHeight > window.innerHeight) y = event.clientY - tip.offsetHeight - 10;
    tip.style.left = x + 'px';
    tip.style.top = y + 'px';
  });
}());
