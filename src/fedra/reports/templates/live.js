"use strict";
// Follows runs: asks for the page's inside every two seconds and replaces it when there is news.
(() => {
  const main = document.querySelector("main[data-live]");
  const light = document.querySelector("[data-live-state]");
  const rows = main.querySelector("[data-rows]");
  const search = document.querySelector("input[type=search]");
  const status = document.querySelector("select[name=status]");
  const inside = rows || main;
  const pause = 2000;

  function filter() {
    if (!rows) return;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    const all = rows.querySelectorAll("tbody tr");
    for (const row of all) {
      const fits = (!status.value || row.dataset.status === status.value)
        && words.every((word) => row.dataset.words.includes(word));
      row.classList.toggle("off", !fits);
      if (fits) shown += 1;
    }
    const count = rows.querySelector("[data-count]");
    count.dataset.whole ??= count.textContent;
    count.textContent = shown === all.length ? count.dataset.whole : `${shown} of ${all.length} runs shown`;
  }

  function replace(html) {
    const chosen = new Set([...inside.querySelectorAll("input[name=run]:checked")].map((box) => box.value));
    inside.innerHTML = html;
    for (const box of inside.querySelectorAll("input[name=run]")) box.checked = chosen.has(box.value);
    fedra.enhance(inside);
    filter();
  }

  function say(text, on) {
    light.textContent = text;
    light.classList.toggle("on", on);
  }

  async function follow() {
    try {
      const url = new URL(main.dataset.live, location.href);
      if (rows) url.search = ""; // the whole list: this page filters it
      url.searchParams.set("version", main.dataset.version);
      const answer = await fetch(url, { cache: "no-store" });
      if (answer.status === 200) {
        replace(await answer.text());
        main.dataset.version = answer.headers.get("x-version");
      }
      if (answer.ok) say("live", true);
      else say(await answer.text(), false);
    } catch (error) {
      say("no answer", false);
    }
    setTimeout(follow, document.hidden ? 5 * pause : pause);
  }

  if (rows) {
    document.querySelector("[data-no-script]").hidden = true;
    search.addEventListener("input", filter);
    status.addEventListener("change", filter);
    search.form.addEventListener("submit", (event) => { if (!event.submitter) event.preventDefault(); });
    if (search.value || status.value) main.dataset.version = ""; // the server filtered: fetch the whole list
    filter();
  }
  follow();
})();
