
// Looks at the run again and again, and replaces what has changed.
const live = document.getElementById("live");
const said = document.getElementById("said");
const say = (text) => {
  if (said.textContent !== text) said.textContent = text;
};
let version = live.dataset.version;
const look = async () => {
  try {
    const answer = await fetch("live", { headers: { "If-None-Match": `"${version}"` }, cache: "no-store" });
    if (answer.status === 200) {
      live.innerHTML = await answer.text(); // the server has escaped every text in it, and the policy runs no script
      version = answer.headers.get("ETag").replaceAll('"', "");
      withCursors(live);
    }
    say("Looks again every 2 seconds.");
  } catch {
    say("The server does not answer: it has ended, or the training that it belonged to. The page shows what was seen last.");
  }
  setTimeout(look, 2000);
};
setTimeout(look, 2000);
