// The page of a server: new trials arrive by themselves, and a trial can be exported from here.
const EVERY = 2000;
let version = page.live?.version ?? null;

async function poll() {
  try {
    const told = await (await fetch("status.json", { cache: "no-store" })).json();
    if (told.error) throw new Error(told.error);
    if (told.version !== version) await takeNew();
    told.status.forEach((status, index) => {
      if (page.studies[index]) page.studies[index].status = status;
    });
    showLive("");
  } catch (error) {
    showLive(error instanceof TypeError ? "The server has stopped; this is what it last said." : error.message);
  }
  setTimeout(poll, EVERY);
}

async function takeNew() {
  const fresh = await (await fetch("data.json", { cache: "no-store" })).json();
  if (fresh.error) throw new Error(fresh.error);
  const began = performance.now();
  version = fresh.version;
  page.studies = fresh.studies;
  refresh();
  document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
  document.body.dataset.updateMilliseconds = Math.round(performance.now() - began);
}

function showLive(problem) {
  const status = byId("status");
  if (problem) {
    status.dataset.kind = "stopped";
    status.textContent = problem;
    status.hidden = false;
  } else showStatus();
}

async function fetchDetail(trial) {
  const answer = await fetch(`studies/${state.study}/trials/${trial}`);
  if (!answer.ok) return;
  study().details[String(trial)] = await answer.json();
  if (state.trial === trial) showSelection();
}

async function exportTrial() {
  const trial = state.trial;
  const [button, said] = [byId("export"), byId("export-said")];
  button.disabled = true;
  said.hidden = false;
  said.textContent = `Exporting trial ${trial} and verifying every file; this may take a minute …`;
  try {
    const answer = await fetch("export", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Token": page.live.token },
      body: JSON.stringify({ study: state.study, trial }),
    });
    const told = await answer.json();
    said.textContent = answer.ok
      ? `${told.holds ? "Everything agrees" : "Something differs"}: ${told.folder} (${told.files.join(", ")})`
      : told.error;
  } catch {
    said.textContent = "The server did not answer.";
  }
  button.disabled = false;
}

function goLive() {
  byId("export").hidden = false;
  byId("export").addEventListener("click", exportTrial);
  setTimeout(poll, EVERY);
}
