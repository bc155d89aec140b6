// The live page: new trials appear automatically, and a trial can be exported.
const EVERY = 2000;
// In the address that the command printed; the server does not send it.
const token = new URLSearchParams(location.hash.slice(1)).get("export");
let version = page.live?.version ?? null;

async function poll() {
  try {
    const current = await (await fetch("status.json", { cache: "no-store" })).json();
    if (current.error) throw new Error(current.error);
    if (current.version !== version) await loadNew();
    current.status.forEach((status, index) => {
      if (page.studies[index]) page.studies[index].status = status;
    });
    showLive("");
  } catch (error) {
    showLive(error instanceof TypeError ? "The server has stopped; this is its last state." : error.message);
  }
  setTimeout(poll, EVERY);
}

async function loadNew() {
  const fresh = await (await fetch("data.json", { cache: "no-store" })).json();
  if (fresh.error) throw new Error(fresh.error);
  const start = performance.now();
  version = fresh.version;
  page.studies = fresh.studies;
  refresh();
  document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
  document.body.dataset.updateMilliseconds = Math.round(performance.now() - start);
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
  const [button, message] = [byId("export"), byId("export-said")];
  button.disabled = true;
  message.hidden = false;
  message.textContent = `Exporting trial ${trial} and verifying every file; this may take a minute …`;
  try {
    const answer = await fetch("export", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Token": token },
      body: JSON.stringify({ study: state.study, trial }),
    });
    const result = await answer.json();
    message.textContent = answer.ok
      ? `${result.holds ? "Verified" : "Verification failed"}: ${result.folder} (${result.files.join(", ")})`
      : result.error;
  } catch {
    message.textContent = "The server did not answer.";
  }
  button.disabled = false;
}

function goLive() {
  byId("export").hidden = !token;
  byId("export").addEventListener("click", exportTrial);
  setTimeout(poll, EVERY);
}
