// Entry point of the build: connects index.js to hostler's functions. Node cannot load the first three imports, so tests import index.js.
import * as context from "hostler:consumer/context@0.1.0";
import * as jobs from "hostler:consumer/jobs@0.1.0";
import * as producer from "hostler:consumer/producer@0.1.0";
import { component } from "./hostler.js";
import * as app from "./index.js";

export const { handler } = component(app, { ...context, ...jobs, ...producer });
