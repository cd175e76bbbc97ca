"use strict";
// Sorting tables, switching curves, copying commands, light and dark. The page is complete without any of it.
const fedra = (() => {
  const state = { hidden: new Set(), tabs: {}, sorts: {}, open: new Set() };

  function themes() {
    const button = document.querySelector("[data-theme-switch]");
    const names = ["auto", "light", "dark"];
    const show = (name) => {
      document.documentElement.dataset.theme = name;
      button.textContent = `theme: ${name}`;
    };
    let stored = null;
    try { stored = localStorage.getItem("fedra-theme"); } catch (error) { /* storage may be forbidden */ }
    show(names.includes(stored) ? stored : "auto");
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
      show(next);
      try { localStorage.setItem("fedra-theme", next); } catch (error) { /* the choice then lasts for this page */ }
    });
  }

  function compare(first, second, rising) {
    const [a, b] = [first.dataset.order, second.dataset.order];
    if (a !== undefined && b !== undefined) return (rising ? 1 : -1) * (Number(a) - Number(b));
    if (a !== undefined || b !== undefined) return a === undefined ? 1 : -1; // rows without a value come last
    const order = first.textContent.trim().localeCompare(second.textContent.trim(), "en", { numeric: true });
    return rising ? order : -order;
  }

  function sort(table, column, rising) {
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], rising));
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((heading, index) => {
      if (index === column) heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
      else heading.removeAttribute("aria-sort");
    });
  }

  function tables(root) {
    for (const table of root.querySelectorAll("table[data-sortable]")) {
      [...table.tHead.rows[0].cells].forEach((heading, column) => {
        if (heading.classList.contains("unsorted")) return;
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = heading.textContent;
        heading.replaceChildren(button);
        button.addEventListener("click", () => {
          const numeric = heading.classList.contains("number");
          const before = heading.getAttribute("aria-sort");
          const rising = before ? before === "descending" : !numeric;
          state.sorts[table.dataset.name] = [column, rising];
          sort(table, column, rising);
        });
      });
      const chosen = state.sorts[table.dataset.name];
      if (chosen) sort(table, ...chosen);
    }
  }

  function series(root) {
    const apply = (number) => {
      for (const item of document.querySelectorAll(`.series-${number}`)) {
        item.classList.toggle("off", state.hidden.has(number));
      }
    };
    for (const item of root.querySelectorAll("[data-legend] li")) {
      const number = item.dataset.series;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...item.childNodes);
      button.title = "show or hide";
      button.dataset.series = number;
      const show = () => {
        for (const other of document.querySelectorAll(`button[data-series="${number}"]`)) {
          other.setAttribute("aria-pressed", String(!state.hidden.has(number)));
        }
      };
      button.addEventListener("click", () => {
        if (!state.hidden.delete(number)) state.hidden.add(number);
        show();
        apply(number);
      });
      item.append(button);
      show();
      apply(number);
    }
  }

  function tabs(root) {
    for (const box of root.querySelectorAll("[data-tabs]")) {
      const panels = [...box.querySelectorAll(":scope > .panel")];
      const list = document.createElement("div");
      list.className = "tablist";
      list.setAttribute("role", "tablist");
      const buttons = panels.map((panel, index) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("role", "tab");
        button.textContent = panel.dataset.title;
        button.addEventListener("click", () => show(index));
        button.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (step) show((index + step + panels.length) % panels.length, true);
        });
        return button;
      });
      const show = (chosen, focus) => {
        state.tabs[box.dataset.tabs] = chosen;
        panels.forEach((panel, index) => { panel.hidden = index !== chosen; });
        buttons.forEach((button, index) => {
          button.setAttribute("aria-selected", String(index === chosen));
          button.tabIndex = index === chosen ? 0 : -1;
        });
        if (focus) buttons[chosen].focus();
      };
      list.append(...buttons);
      box.prepend(list);
      box.classList.add("on");
      show(Math.min(state.tabs[box.dataset.tabs] ?? 0, panels.length - 1));
    }
  }

  function copies(root) {
    if (!navigator.clipboard) return;
    for (const box of root.querySelectorAll(".code")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "copy";
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(box.querySelector("code").textContent);
          button.textContent = "copied";
        } catch (error) {
          button.textContent = "not allowed";
        }
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      });
      box.append(button);
    }
  }

  function details(root) {
    for (const box of root.querySelectorAll("details[data-name]")) {
      box.open = state.open.has(box.dataset.name);
      box.addEventListener("toggle", () => {
        if (box.open) state.open.add(box.dataset.name);
        else state.open.delete(box.dataset.name);
      });
    }
  }

  function enhance(root) {
    tables(root);
    series(root);
    tabs(root);
    copies(root);
    details(root);
  }

  themes();
  enhance(document);
  window.addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("details:not([data-name=files])")) box.open = true;
  });
  return { enhance, state };
})();
