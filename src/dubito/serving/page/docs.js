// The form of /docs: sends images to /predict, and shows the command that does the same and the answer.

const form = document.getElementById("try"), answer = document.getElementById("answer");
const command = document.getElementById("command"), key = form.elements.namedItem("key");

/** The options that were filled in, by name. */
function given() {
  const fields = [...form.querySelectorAll("[data-option]")];
  return fields.map(field => [field.name, field.type === "checkbox" ? (field.checked ? "true" : "") : field.value])
    .filter(([, value]) => value !== "");
}

function describe() {
  const files = [...form.elements.namedItem("images").files].map(file => file.name);
  const names = files.length ? files : ["photo.png"];
  const quoted = text => /^[\w.=@/:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [...names.map(name => `images=@${name}`), ...given().map(([name, value]) => `${name}=${value}`)];
  const header = key.value ? " -H \"X-API-Key: $DUBITO_API_KEY\"" : "";
  command.textContent = `curl${header} ${parts.map(part => `-F ${quoted(part)}`).join(" ")} ${location.origin}/predict`;
}

async function send(event) {
  event.preventDefault();
  const body = new FormData();
  for (const file of form.elements.namedItem("images").files) body.append("images", file);
  for (const [name, value] of given()) body.append(name, value);
  const button = form.querySelector("button");
  button.disabled = true;
  answer.hidden = false;
  answer.textContent = "Waiting for the answer …";
  try {
    const response = await fetch("/predict", { method: "POST", body, headers: key.value ? { "X-API-Key": key.value } : {} });
    answer.textContent = `${response.status} ${response.statusText}\n${JSON.stringify(await response.json(), null, 2)}`;
  } catch (error) {
    answer.textContent = `The server cannot be reached: ${error.message}`;
  }
  button.disabled = false;
}

form.addEventListener("input", describe);
form.addEventListener("submit", send);
describe();
